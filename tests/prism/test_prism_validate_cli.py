"""`persona-mlflow prism sheets` and `validate`: from a benchmark over filled sheets to the tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from bench_parts import save_judging_model, write_big5

from experiments import call
from persona_mlflow.prism.annotation import FIDELITY, LABELLING, SHEETS, Key
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.ranking import ranking_metrics

DATA = ("--benchmark", "big5-easy", "--data")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_big5(tmp_path_factory.mktemp("data"))


@pytest.fixture
def folder(bare_workdir: Path, data: Path) -> Path:
    options = ("--groups", "12", "--annotators", "2", "--output", "sheets")
    assert call("prism", "sheets", *DATA, str(data), *options) == 0
    return Path("sheets")


def fill(path: Path, answer: Callable[[int, dict[str, str]], dict[str, str]]) -> None:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row |= answer(number, row)
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, SHEETS[path.name], delimiter=";")
        writer.writeheader()
        writer.writerows(rows)


def fill_all(folder: Path) -> dict[str, dict[str, int]]:
    """Fill in every sheet; returns annotator → item → rating."""
    key = Key.load(folder)
    positive = {item.item: item.positive for item in key.items}
    ratings: dict[str, dict[str, int]] = {name: {} for name in key.annotators}
    for a, annotator in enumerate(key.annotators):

        def rate(number: int, row: dict[str, str], a: int = a, annotator: str = annotator) -> dict[str, str]:
            rating = (4 if positive[row["item"]] else 2) + (number + a) % 3 - 1
            ratings[annotator][row["item"]] = rating
            return {"rating": str(rating)}

        def choose(
            number: int, row: dict[str, str], a: int = a, annotator: str = annotator
        ) -> dict[str, str]:
            wanted = STATES[0 if positive[row["item"]] else 1 + (number + a) % 2]
            order = list(key.options[annotator][row["item"]][row["dimension"]])
            return {"choice": "ABC"[order.index(wanted)]}

        fill(folder / annotator / FIDELITY, rate)
        fill(folder / annotator / LABELLING, choose)
    return ratings


def test_sheets_say_what_was_drawn(
    bare_workdir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*DATA, str(data), "--groups", "12", "--output", "sheets", "--swap", "response")
    assert call("prism", "sheets", *options, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["groups"], printed["items"], printed["shortfall"]) == (12, 24, 0)
    assert set(printed["strata"].values()) == {2}
    assert printed["kinds"] == {"positive": 12, "opposite level": 12}
    assert len(printed["written"]) == 6
    assert all(Path(path).is_file() for path in printed["written"])
    assert call("prism", "sheets", *options) == 0
    text = capsys.readouterr().out
    assert "12 groups, 24 items" in text
    assert "annotator-3" in text
    assert "key.json" in text


def test_bad_calls_of_sheets_are_refused(
    bare_workdir: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (*DATA, str(data), "--output", "sheets")
    for arguments, part in (
        ((*good, "--groups", "0"), "groups must be"),
        ((*good, "--annotators", "-1"), "annotators must be"),
        ((*good, "--swap", "both"), "swap"),
        (("--benchmark", "big5-esay", "--data", str(data), "--output", "sheets"), "big5-easy"),
        (good[:-2], "--output"),
    ):
        assert call("prism", "sheets", *arguments) == 2
        assert part in capsys.readouterr().err
    assert not Path("sheets").exists()


def test_an_empty_folder_of_sheets_says_how_much_is_filled_in(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("prism", "validate", str(folder)) == 2
    error = capsys.readouterr().err
    assert "0 of 48 ratings and 0 of 144 choices are filled in" in error
    assert not list(folder.glob("*.csv"))
    assert call("prism", "validate", "elsewhere") == 2
    assert "key.json: no such file" in capsys.readouterr().err


def test_sheets_with_answers_are_not_overwritten(
    folder: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_all(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.csv")}
    options = ("--groups", "12", "--annotators", "2", "--output", str(folder))
    assert call("prism", "sheets", *DATA, str(data), *options) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*.csv")} == before


def test_ratings_alone_give_the_human_verification(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ratings = fill_all(folder)
    capsys.readouterr()
    assert call("prism", "validate", str(folder), "--draws", "50", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert {"verification", "label_agreement"} <= printed.keys()
    assert "diagnostics" not in printed
    assert [p["filled"] for p in printed["progress"]] == [24, 72, 24, 72]
    by = {(row["annotator"], row["measure"]): row for row in printed["verification"]}
    key = Key.load(folder)
    for annotator, rated in ratings.items():
        frame = pd.DataFrame(
            {
                "group": [item.group for item in key.items],
                "positive": [item.positive for item in key.items],
                "score": [float(rated[item.item]) for item in key.items],
            }
        )
        expected = ranking_metrics(frame, draws=50)
        for name in ("auc", "pair_auc", "group_accuracy"):
            assert by[annotator, name]["value"] == pytest.approx(expected[name])
            assert (by[annotator, name]["low"], by[annotator, name]["high"]) == expected.intervals[name]
        means = frame.groupby("positive")["score"].mean()
        assert by[annotator, "mean_positive"]["value"] == pytest.approx(means[True])
        assert by[annotator, "mean_negative"]["value"] == pytest.approx(means[False])
    table = pd.read_csv(folder / "human_verification.csv")
    assert len(table) == len(printed["verification"])
    assert not (folder / "dimension_diagnostics.csv").exists()
    assert call("prism", "validate", str(folder), "--draws", "50") == 0
    text = capsys.readouterr().out
    assert "Human verification (P2 Table 6)" in text
    assert "48 of 48 ratings" in text


def test_one_wrong_cell_is_one_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder / "annotator-2" / FIDELITY, lambda n, row: {"rating": "7"} if n == 1 else {})
    capsys.readouterr()
    assert call("prism", "validate", str(folder)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "annotator-2/fidelity.csv:3: rating '7' is off the scale" in error


def test_a_benchmark_run_is_held_against_the_annotators(
    workdir: Path, folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_all(folder)
    model = save_judging_model(tmp_path / "judging")
    options = ("--methods", "prism,vanilla", "--max-new-tokens", "6", "--order-cases", "0", "--draws", "0")
    bench = ("prism", "bench", *DATA, str(data), "--evaluator", str(model), *options, "--output", "out")
    assert call(*bench) == 0
    capsys.readouterr()
    assert call("prism", "validate", str(folder), "--runs", "out", "--draws", "50", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["notes"] == []
    rows = {(row["dimension"], row["measure"]): row for row in printed["diagnostics"]}
    assert len(rows) == len(printed["diagnostics"]) == 16
    assert {(row["evaluator"], row["method"]) for row in printed["diagnostics"]} == {("judging", "PRISM")}

    # Top-1 once more, from the sheets and the probabilities.
    key = Key.load(folder)
    q = pd.read_parquet(Path("out") / "judging" / "prism" / "probabilities.parquet")
    likeliest = {
        (row["case"], row["dimension"]): max(STATES, key=lambda state, row=row: row[f"q_{state}"])
        for row in q.to_dict("records")
    }
    votes: dict[tuple[str, str], list[str]] = {}
    ids = {item.item: item.id for item in key.items}
    for annotator in key.annotators:
        with (folder / annotator / LABELLING).open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file, delimiter=";"):
                order = key.options[annotator][row["item"]][row["dimension"]]
                place = ids[row["item"]], row["dimension"]
                votes.setdefault(place, []).append(order["ABC".index(row["choice"])])
    for dimension in DIMENSIONS:
        agreed = {place: found[0] for place, found in votes.items() if len(set(found)) == 1}
        hits = [likeliest[place] == state for place, state in agreed.items() if place[1] == dimension]
        assert rows[dimension, "top_1"]["value"] == pytest.approx(sum(hits) / len(hits))
        assert rows[dimension, "top_1"]["n"] == len(hits)
        assert rows[dimension, "top_1"]["split"] == 24 - len(hits) > 0
    assert {row["method"] for row in printed["correlation"]} == {"PRISM", "vanilla, 5 points"}
    assert set(pd.read_csv(folder / "correlation.csv")["measure"]) == {"spearman", "kendall"}
    assert len(pd.read_csv(folder / "dimension_diagnostics.csv")) == 16

    assert call("prism", "validate", str(folder), "--runs", "out", "--draws", "50") == 0
    text = capsys.readouterr().out
    assert "Dimension diagnostics (P2 Table 7): judging, PRISM" in text
    assert "on which the annotators are split" in text
    # Scores of other examples.
    assert call("prism", "sheets", *DATA, str(data), "--swap", "response", "--output", "others") == 0
    fill_all(Path("others"))
    for path in Path("out").glob("*/vanilla*/method_run.json"):
        path.unlink()
    capsys.readouterr()
    assert call("prism", "validate", str(folder), "--runs", "nowhere") == 2
    assert "nowhere: no such file" in capsys.readouterr().err
    # The positives are in both, the negatives are not.
    assert call("prism", "validate", "others", "--runs", "out", "--draws", "0", "--json") == 0
    assert "annotated items" in json.loads(capsys.readouterr().out)["notes"][0]
