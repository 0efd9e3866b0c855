"""`persona-mlflow plan`: counts by hand, estimates from made-up measurements, and a calibration for real."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from math import exp, hypot, sqrt
from pathlib import Path
from typing import Any

import pytest

from chat_server import Reply, Server, answer
from experiments import ANSWERS, RUNS, SPEC, call, write_spec
from persona_mlflow.calibration import (
    SHORTEST_LIMIT,
    Measurement,
    Round,
    choose_limit,
    estimate_length,
    measure,
    measured_speed,
)
from persona_mlflow.design_size import find_designs, find_precision
from persona_mlflow.engines.base import Completion, Decoding, Request
from persona_mlflow.estimate import (
    ESTIMATE,
    Family,
    Length,
    Speed,
    TimeEstimate,
    compare_with_estimate,
    disk_bytes,
    duration,
    estimate_time,
    family_times,
    find_families,
    keep_estimate,
)
from persona_mlflow.hardware import Machine, find_machine, matrix_rate, rough_speed
from persona_mlflow.model_size import ModelSize, find_size
from persona_mlflow.plan import UNKNOWN_REVISION, Plan, make_plan, make_request
from persona_mlflow.prompt_tokens import TokenModel, fit, fit_tokens, local_renderer
from persona_mlflow.spec import parse_spec


def small_plan(model: Path | str, **changes: Any) -> Plan:
    return make_plan(parse_spec({**SPEC, "model": str(model), **changes}, "x"))


def read_plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert call("plan", "--json", *arguments) == 0
    return dict(json.loads(capsys.readouterr().out))


# ------------------------------------------------------------------------------------------------ counts


def test_counts_by_hand(workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_plan(capsys, "-e", str(write_spec(workdir, lettered_model)))
    assert (found["runs"], found["settings"], found["questions"]) == (3 * 4, 4, 6)
    assert (found["prompts"], found["answers"]) == (3 * 2 * 6, 3 * 4 * 6)
    families = {(f["tpf"], f["temperature"]): f for f in found["time"]["families"]}
    assert families.keys() == {("justanswer", 0.0), ("justanswer", 1.0)}
    assert {(f["runs"], f["answers"]) for f in families.values()} == {(6, 36)}
    assert found["tokens"]["completion"] == 72 * 1  # max_new_tokens is 1
    assert found["memory"]["rows"] == 32
    assert not (workdir / "outputs").exists()


def all_requests(plan: Plan) -> Iterator[tuple[int, Request]]:
    for group in plan.grid.prompt_groups():
        for question in plan.questions.questions:
            yield len(group), make_request(group[0], question)


@pytest.mark.parametrize(
    "factors",
    [
        {"ppf": ["barebones", "identitynature"], "tpf": ["justanswer", "explain"], "temperature": [0, 1]},
        {"option_order": ["given", "reversed"], "ppf": ["youareknowledge"]},
    ],
)
def test_characters_are_those_of_the_prompts_written_out(
    lettered_model: Path, factors: dict[str, Any]
) -> None:
    plan = small_plan(lettered_model, factors=factors)
    written = [(shared, len(r.system) + len(r.user)) for shared, r in all_requests(plan)]
    families = find_families(plan)
    assert sum(f.prompts for f in families) == pytest.approx(len(written)) == plan.prompts
    assert sum(f.characters for f in families) == pytest.approx(sum(n for _, n in written))
    assert sum(f.asked_characters for f in families) == pytest.approx(sum(s * n for s, n in written))
    assert sum(f.answers for f in families) == plan.draws
    assert sum(f.runs for f in families) == len(plan.grid)


def test_equal_greedy_answers_are_generated_once_here_and_each_time_behind_an_endpoint(
    lettered_model: Path,
) -> None:
    factors = {"temperature": [0, 1], "repeat": [0, 1, 2]}
    here = {f.temperature: f for f in find_families(small_plan(lettered_model, factors=factors))}
    assert (here[0.0].answers, here[1.0].answers) == (3 * 3 * 6, 3 * 3 * 6)
    assert here[0.0].rows == pytest.approx(3 * 6)
    assert here[1.0].rows == pytest.approx(3 * 3 * 6)
    assert here[0.0].prompts + here[1.0].prompts == pytest.approx(3 * 6)
    engine = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}
    there = {f.temperature: f for f in find_families(small_plan("m", factors=factors, engine=engine))}
    assert {(f.rows, f.prompts) for f in there.values()} == {(54, 54)}


# ------------------------------------------------------------------------------------------------ tokens


def test_prompt_tokens_are_near_those_of_every_prompt_tokenised(lettered_model: Path) -> None:
    plan = small_plan(lettered_model, limit=20, factors={"tpf": ["justanswer", "explain"]})
    renderer = local_renderer(plan)
    assert renderer is not None
    exact = sum(len(renderer.render(r.system, r.user)) for _, r in all_requests(plan))
    tokens = fit_tokens(plan, renderer)
    families = find_families(plan)
    found = tokens.tokens(plan.prompts, sum(f.characters for f in families))
    assert tokens.sampled == 320
    assert abs(found - exact) <= max(0.02 * exact, 2 * tokens.error(plan.prompts))


def test_the_fit_finds_a_line_again_and_its_scatter() -> None:
    rng = random.Random(3)
    characters = [rng.randrange(100, 2000) for _ in range(4000)]
    exact = fit(characters, [30 + 2 * c for c in characters])
    assert (exact.per_prompt, exact.per_character) == (pytest.approx(30), pytest.approx(2))
    assert exact.residual == pytest.approx(0, abs=1e-6)
    noisy = fit(characters, [round(30 + c / 4 + rng.gauss(0, 5)) for c in characters])
    assert noisy.residual == pytest.approx(5, rel=0.05)
    assert noisy.error(100) == pytest.approx(1.96 * noisy.residual * 100 / sqrt(4000))
    assert fit([7, 7], [3, 5]).tokens(1, 7) == 4  # prompts of one length


def test_without_a_tokenizer_the_assumption_is_said(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(workdir, Path("llama8b"), limit=2)
    found = read_plan(capsys, "-e", str(spec))
    plan = make_plan(parse_spec({**SPEC, "model": "llama8b", "limit": 2}, "x"), needs_weights=False)
    assert plan.revision == UNKNOWN_REVISION
    characters = sum(shared * (len(r.system) + len(r.user)) for shared, r in all_requests(plan))
    assert found["tokens"]["prompt"] == round(25 * plan.draws + characters / 4)
    assert any("4 characters per token" in line for line in found["assumptions"])


# -------------------------------------------------------------------------------------------------- time


def family(tpf: str, runs: int, answers: float, characters: float) -> Family:
    return Family(tpf, 0.0, runs, answers, answers, answers, characters, characters)


FAMILIES = [family("a", 2, 40, 4000), family("b", 3, 60, 12000)]
LENGTHS = {("a", 0.0): Length(5, 1, 10), ("b", 0.0): Length(100, 10, 10)}
TOKENS = TokenModel(per_prompt=10, per_character=0.5)


def test_the_time_is_the_sum_of_its_parts_and_its_error_that_of_independent_ones() -> None:
    speed = Speed(100.0, 50.0, 0.2, {"loading": 7.0}, 1.5, "s", emptying=3.0)
    found = estimate_time(FAMILIES, TOKENS, LENGTHS, speed)
    reading = (10 * 40 + 2000 + 10 * 60 + 6000) / 100
    answering = (40 * 5 + 60 * 100) / 50
    assert found.parts == pytest.approx(
        {
            "loading": 7.0,
            "reading prompts": reading,
            "answering": answering,
            "emptying batches": 3.0,
            "logging runs": 5 * 1.5,
        }
    )
    assert found.seconds == pytest.approx(7 + reading + answering + 3 + 7.5)
    half = hypot(40 * 1 / 50, 60 * 10 / 50, 0.2 * (reading + answering + 3))
    assert (found.low, found.high) == pytest.approx((found.seconds - half, found.seconds + half))
    a, b = found.families
    assert (a.seconds, b.seconds) == pytest.approx((2400 / 100 + 200 / 50, 6600 / 100 + 6000 / 50))


def test_a_rough_time_has_a_range_by_a_factor_and_batches_empty_once_a_window() -> None:
    rough = Speed(100.0, 50.0, 0.0, {}, 0.0, "s", factor=3.0)
    found = estimate_time(FAMILIES, TOKENS, LENGTHS, rough)
    assert (found.low, found.high) == pytest.approx((found.seconds / 3, found.seconds * 3))
    many = [family("a", 1, 20480, 1.0)]
    speed = Speed(None, 50.0, 0.0, {}, 0.0, "s", emptying=2.0)
    assert estimate_time(many, TOKENS, LENGTHS, speed).parts["emptying batches"] == pytest.approx(20)
    assert estimate_time(many, TOKENS, LENGTHS, speed).parts["reading prompts"] == 0


def completions(lengths: Sequence[int], limit: int) -> list[Completion]:
    return [
        Completion((0, (0, "q")), "x", "length" if n >= limit else "stop", 10, min(n, limit)) for n in lengths
    ]


def test_a_length_that_nothing_cut_is_the_mean() -> None:
    found = estimate_length(completions([2, 4, 9], 50), limit=50, most=50)
    assert (found.mean, found.beyond, found.answers) == (5, 0, 3)
    assert found.error == pytest.approx(1.96 * sqrt(13) / sqrt(3))
    # Cut where the experiment cuts, too: nothing lies beyond.
    assert estimate_length(completions([60, 60], 50), limit=50, most=50) == Length(50, 0.0, 2)


def test_a_length_that_was_cut_is_extrapolated_by_the_rate_at_which_answers_ended() -> None:
    found = estimate_length(completions([4, 6, 90, 90], 10), limit=10, most=30)
    hazard = 2 / 30
    beyond = 0.5 * (1 - exp(-hazard * 20)) / hazard
    assert found.beyond == pytest.approx(beyond)
    assert found.mean == pytest.approx(7.5 + beyond)
    never = estimate_length(completions([90, 90], 10), limit=10, most=30)
    assert never.mean == 30  # none ended: all go on to the limit
    rng = random.Random(0)
    lengths = [1 + int(rng.expovariate(1 / 80)) for _ in range(2000)]
    true = sum(min(n, 400) for n in lengths) / len(lengths)
    assert estimate_length(completions(lengths, 60), limit=60, most=400).mean == pytest.approx(true, rel=0.08)


def rounds(*sizes: int, per_token: float, emptying: float, prefill: float, noise: float = 0.0) -> list[Round]:
    made = []
    for place, size in enumerate(sizes):
        found = completions([20] * size, 999)
        rate = per_token * (1 + noise * (-1) ** place)
        made.append(Round(30 * size / prefill + rate * 20 * size + emptying, 30 * size, found))
    return made


def test_full_batches_are_told_apart_from_the_emptying_one() -> None:
    found = Measurement(200.0, rounds(32, 96, 96, per_token=0.01, emptying=4, prefill=200), 999, 32, 9.0)
    assert found.fit() == pytest.approx((0.01, 4.0))
    speed = measured_speed(found, {}, 0.5)
    assert (speed.prefill, speed.decode, speed.emptying) == pytest.approx((200, 100, 4))
    assert speed.error == 0.1  # rounds that agree do not make a short calibration exact
    assert "224 answers in 3 rounds, 32 at once" in speed.source


def test_the_error_of_the_speed_is_that_of_the_large_rounds() -> None:
    made = rounds(32, 96, 96, 96, per_token=0.01, emptying=0, prefill=200, noise=0.2)
    rates = [Measurement(200.0).answering(r) / r.tokens for r in made[1:]]
    assert rates == pytest.approx([0.008, 0.012, 0.008])
    sd = sqrt(sum((r - sum(rates) / 3) ** 2 for r in rates) / 2)
    assert Measurement(200.0, made).error == pytest.approx(4.3 * sd / sqrt(3) / (sum(rates) / 3))
    assert Measurement(200.0, made[:2]).error == 0.2  # one large round alone


def test_one_size_of_rounds_and_noise_give_no_nonsense() -> None:
    one = Measurement(None, rounds(8, 8, per_token=0.02, emptying=1, prefill=1e12), 999, 8)
    assert one.fit() == pytest.approx((0.02 + 1 / 160, 0))
    turned = [
        *rounds(32, per_token=0.5, emptying=0, prefill=1),
        *rounds(96, per_token=0.01, emptying=0, prefill=1),
    ]
    per_token, emptying = Measurement(1.0, turned).fit()
    assert 0 < per_token <= 0.01
    assert 0 <= emptying <= 0.5 * 0.01 * 96 * 20 + 1e-9


def test_the_limit_of_a_calibration_lets_the_rounds_end_in_time() -> None:
    assert choose_limit(128, 48, rate=1000.0, seconds=30) == 48
    assert choose_limit(128, 1000, rate=1000.0, seconds=30) == 234
    assert choose_limit(128, 1000, rate=1.0, seconds=30) == SHORTEST_LIMIT
    assert choose_limit(128, 4, rate=1.0, seconds=-5) == 4


class Metronome:
    """An engine whose time is exactly known: a clock that moves by what each answer takes."""

    def __init__(self, prefill: float, per_token: float, emptying: float, length: int) -> None:
        self.decoding = Decoding(max_new_tokens=500)
        self.now, self.prefill, self.per_token = 0.0, prefill, per_token
        self.emptying, self.length = emptying, length
        self.limits: list[int] = []

    def describe(self) -> dict[str, str | int | float | bool]:
        return {"batch_size": 8}

    def check(self, requests: Any) -> None: ...

    def close(self) -> None: ...

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        limit = self.decoding.max_new_tokens
        self.limits.append(limit)
        draws = [draw for request in requests for draw in request.draws]
        got = min(limit, self.length)
        self.now += 40 * len(requests) / self.prefill
        if limit > 1:
            self.now += self.per_token * got * len(draws) + self.emptying
        yield [Completion(d.key, "x", "stop" if got < limit else "length", 40, got) for d in draws]


def test_a_measurement_finds_the_rates_of_a_machine_that_is_known(lettered_model: Path) -> None:
    plan = small_plan(lettered_model, decoding={"max_new_tokens": 500}, limit=20)
    engine = Metronome(prefill=400, per_token=0.01, emptying=1.0, length=60)
    found = measure(plan, engine, 60.0, clock=lambda: engine.now)
    per_token, emptying = found.fit()
    assert found.prefill == pytest.approx(400)
    assert per_token == pytest.approx(0.01, rel=0.01)
    assert emptying == pytest.approx(1.0, rel=0.05)
    assert engine.decoding == Decoding(max_new_tokens=500)
    assert engine.limits[:3] == [2, 8, 1]
    assert found.limit == max(engine.limits)
    assert 30 < found.seconds < 75


# ------------------------------------------------------------------------------- what is kept and compared


def test_the_run_is_held_against_its_estimate(lettered_model: Path, tmp_path: Path) -> None:
    plan, other = small_plan(lettered_model), small_plan(lettered_model, seed=1)
    folder = tmp_path / "out"
    assert compare_with_estimate(plan, folder, plan.draws, 10) is None
    keep_estimate(plan, folder, TimeEstimate(200.0, 150.0, 250.0, {"a": 200.0}), "s")
    said = "Estimated 3:20 (2:30 to 4:10), took {}."
    assert compare_with_estimate(plan, folder, plan.draws, 180) == said.format("3:00: 10% less")
    assert compare_with_estimate(plan, folder, plan.draws, 300) == said.format("5:00: 50% longer")
    assert compare_with_estimate(plan, folder, plan.draws, 200) == said.format("3:20: as long")
    assert compare_with_estimate(plan, folder, plan.draws) is not None  # since this process began
    assert compare_with_estimate(plan, folder, plan.draws - 1, 180) is None  # a part was on record
    assert compare_with_estimate(other, folder, other.draws, 180) is None
    (folder / ESTIMATE).write_text("{")
    assert compare_with_estimate(plan, folder, plan.draws, 180) is None


def test_durations() -> None:
    assert [duration(s) for s in (5, 65, 3725, 90000, 10**9)] == [
        "0:05",
        "1:05",
        "1:02:05",
        "1 d 1 h",
        "31.7 years",
    ]


def test_a_calibration_for_real_is_kept_beside_the_ledger_and_does_not_disturb_it(
    workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "not-to-be-touched")
    spec = str(write_spec(workdir, lettered_model, decoding={"max_new_tokens": 5}))
    before = (workdir / "mlflow.db").read_bytes()
    found = read_plan(capsys, "-e", spec, "-o", "out", "--calibrate", "1")
    assert (workdir / "mlflow.db").read_bytes() == before
    assert os.environ["MLFLOW_RUN_ID"] == "not-to-be-touched"
    monkeypatch.delenv("MLFLOW_RUN_ID")
    time = found["time"]
    assert time["calibrated"]
    assert 0 < time["low"] < time["seconds"] < time["high"]
    assert time["seconds"] == pytest.approx(sum(time["parts"].values()))
    assert {"loading the model", "opening the store", "logging runs", "answering"} <= set(time["parts"])
    assert all(0 < f["tokens_per_answer"] <= 5 for f in time["families"])
    kept = json.loads((workdir / "out" / ESTIMATE).read_text())
    assert kept["seconds"] == time["seconds"]
    capsys.readouterr()
    assert call("run", "-e", spec, "-o", "out") == 0
    plan = make_plan(
        parse_spec({**SPEC, "model": str(lettered_model), "decoding": {"max_new_tokens": 5}}, "x")
    )
    assert str(compare_with_estimate(plan, workdir / "out", ANSWERS, 1.0)).startswith("Estimated ")
    # Now there are answers to take the widths of intervals from.
    again = read_plan(capsys, "-e", spec, "-o", "out")
    assert any("the answers on record in out" in line for line in again["assumptions"])


# --------------------------------------------------------------------------------------- size and machine


def test_a_model_s_size_is_read_off_its_files(lettered_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    from persona_mlflow.engines.memory import kv_bytes_per_token

    model = AutoModelForCausalLM.from_pretrained(lettered_model)
    size = find_size(str(lettered_model))
    assert size is not None
    assert size.parameters == model.num_parameters()
    assert size.row_bytes(3, "float32") == 3 * kv_bytes_per_token(model)
    assert size.weight_bytes("bfloat16") == 2 * size.parameters
    assert size.weight_bytes("float32", "8bit") == size.parameters


def test_sizes_that_are_known_guessed_and_not_known(tmp_path: Path) -> None:
    llama = find_size("meta-llama/Llama-3.1-8B-Instruct")
    assert llama is not None
    assert llama.weight_bytes("bfloat16") == pytest.approx(16.06e9)
    assert llama.row_bytes(1000, "bfloat16") == 1000 * 2 * 32 * 8 * 128 * 2
    file = tmp_path / "Some-Model.Q8_0.gguf"
    file.write_bytes(bytes(8500))
    guessed = find_size(str(file))
    assert guessed is not None
    assert guessed.parameters == pytest.approx(8000)
    assert guessed.row_bytes(10, "float32") is None
    assert find_size("nobody/nothing") is None
    assert find_size("/no/such/folder") is None


def test_a_rough_speed_follows_from_the_size_and_the_machine() -> None:
    size = ModelSize(8e9, 65536, "x")
    gpu = Machine("cuda", "NVIDIA H100 80GB HBM3", 80e9)
    speed = rough_speed(gpu, size, "bfloat16", "none", rows=256, runs=10)
    assert speed is not None
    assert speed.prefill == pytest.approx(0.4 * 989e12 / 16e9)
    assert speed.decode == pytest.approx(256 / (max(16e9 / (0.5 * 3350e9), 256 / speed.prefill) + 0.025))
    assert speed.factor == 3
    assert rough_speed(Machine("cuda", "NVIDIA NoName", 1e9), size, "float16", "none", 1, 1) is None
    cpu = rough_speed(find_machine("cpu"), size, "float32", "none", rows=32, runs=10)
    assert cpu is not None
    assert cpu.prefill is not None
    assert cpu.prefill > cpu.decode > 0
    assert matrix_rate(64, 0.01) > 0


def test_the_ledger_takes_about_the_room_that_was_foreseen(workdir: Path, lettered_model: Path) -> None:
    spec = write_spec(workdir, lettered_model, limit=20)
    assert call("run", "-e", str(spec), "-o", "out") == 0
    plan = small_plan(lettered_model, limit=20)
    times = family_times(find_families(plan), TokenModel(), {(t, v): Length(1) for t, v in _keys(plan)}, None)
    foreseen = disk_bytes(times, 100)
    taken = sum(path.stat().st_size for path in (workdir / "out" / "cells").iterdir())
    assert taken / 1.5 < foreseen["ledger"] < taken * 1.5
    assert foreseen["artifacts"] > foreseen["ledger"]


def _keys(plan: Plan) -> set[tuple[str, float]]:
    return {f.key for f in find_families(plan)}


# ----------------------------------------------------------------------------------------------- designs


def test_widths_go_with_the_root_of_the_questions_and_are_the_bootstrap_s(lettered_model: Path) -> None:
    from persona_mlflow.analyses.overview import overview
    from persona_mlflow.analyses.study import Study
    from persona_mlflow.simulate import simulate_dataset

    plan = small_plan(lettered_model, limit=40)
    subsets = {"half": {"temperature": [0.0], "ppf": ["barebones", "youare", "identitynature"]}}
    designs = find_designs(plan, subsets, find_precision(plan, Path("nowhere"), None))
    assert [(d.name, d.settings, d.questions, d.answers) for d in designs] == [
        ("all settings", 4, 40, 480),
        ("all settings", 4, 20, 240),
        ("all settings", 4, 10, 120),
        ("half", 2, 40, 240),
        ("half", 2, 20, 120),
        ("half", 2, 10, 60),
    ]
    dataset = simulate_dataset(3, plan.grid.factors, 500, accuracy=0.6)
    for first, part in ((0, dataset), (3, dataset.sel(temperature=[0.0]))):
        table = overview(Study(part, draws=200, permutations=0))
        half = (table["high"] - table["low"]) / 2
        mean = float(table["value"].sel(quantity="accuracy, mean"))
        for design in designs[first : first + 3]:
            scale = sqrt(500 / design.questions)
            assert design.accuracy == pytest.approx(scale * float(half.sel(quantity="accuracy, mean")))
            if float(table["low"].sel(quantity="I_A accuracy")) > 0:  # not cut at 0
                assert design.instability == pytest.approx(scale * float(half.sel(quantity="I_A accuracy")))
            assert design.run == pytest.approx(1.96 * sqrt(mean * (1 - mean) / design.questions))


def test_a_subset_that_leaves_nothing_or_everything_is_left_out(lettered_model: Path) -> None:
    plan = small_plan(lettered_model)
    subsets: dict[str, Any] = {
        "none": {"tpf": ["explain"]},
        "all": {"temperature": [0.0, 0.5, 1.0]},
        "one": {"ppf": ["youare"], "temperature": [0.0]},
    }
    designs = find_designs(plan, subsets, find_precision(plan, Path("nowhere"), None))
    assert {d.name for d in designs} == {"all settings", "one"}
    assert all((d.instability is None) == (d.name == "one") for d in designs)


def test_widths_from_an_earlier_experiment(
    workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = str(write_spec(workdir, lettered_model, limit=20))
    assert call("run", "-e", spec, "-o", "earlier") == 0
    found = read_plan(capsys, "-e", spec, "--like", "earlier")
    assert any("from the answers of earlier" in line for line in found["assumptions"])
    assert found["designs"][0]["half_width_accuracy"] > 0
    assert found["runs"] == RUNS
    assert call("plan", "-e", spec, "--like", "earlier", "--temperature", "0,0.5") == 2
    assert "--like earlier: has not temperature 0.5" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- the command itself


def test_the_paper_is_planned_without_model_network_and_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from persona_mlflow.cli import cli\n"
        "cli.main(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'mlflow'} & set(sys.modules), 'something heavy was imported'\n"
    )
    arguments = ["plan", "-e", "paper", "-m", "llama8b", "-q", "builtin"]
    env = {**os.environ, "HF_HOME": str(tmp_path / "none"), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert any(line.split() == ["runs", "1,968"] for line in lines)
    assert any(line.startswith("memory") for line in lines)
    assert sum(line.startswith("explain-persona") for line in lines) == 3
    assert any(line.startswith("27 (subset A)") for line in lines)
    assert any(line.startswith("12 (subset B)") for line in lines)
    assert not (tmp_path / "outputs").exists()


def test_the_table_of_a_small_experiment_is_printed_with_what_it_rests_on(
    workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("plan", "-e", str(write_spec(workdir, lettered_model))) == 0
    out = capsys.readouterr().out
    for words in (
        "answers              72",
        "disk",
        "weights",
        "time",
        "Smaller designs",
        "What this rests on",
    ):
        assert words in out
    assert "nan" not in out.lower()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--calibrate", "0"), "--calibrate"),
        (("--calibrate", "soon"), "--calibrate"),
        (("--like", "nothing"), "nothing"),
        (("-m", "llama8b", "--calibrate"), "llama8b"),
        (("-m", "smolm2"), "did you mean 'smollm2'"),
        (("-m", "./nowhere"), "there is no such folder"),
    ],
)
def test_what_is_wrong_is_said_with_code_2(
    workdir: Path,
    lettered_model: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    assert call("plan", "-e", str(write_spec(workdir, lettered_model)), *options) == 2
    assert words in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- endpoints


def test_an_endpoint_s_cost_is_foreseen_and_its_speed_is_not(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "price_prompt": 2, "price_completion": 8}
    found = read_plan(capsys, "-e", str(write_spec(workdir, Path("m"), engine=engine)))
    assert found["cost"] == pytest.approx((found["tokens"]["prompt"] * 2 + 72 * 8) / 1e6, rel=1e-3)
    assert found["time"] is None
    assert found["memory"] is None
    assert any("an endpoint's speed is its own" in line for line in found["assumptions"])
    assert all(design["seconds"] is None for design in found["designs"])
    half = next(design for design in found["designs"] if design["share"] == 0.5)
    assert half["cost"] == pytest.approx(found["cost"] / 2)


def test_an_endpoint_is_calibrated_by_asking_it(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")

    def respond(body: dict[str, Any], tries: int) -> Reply:
        sent = sum(len(m["content"]) for m in body["messages"]) // 2 + 11
        got = min(body["max_tokens"], 6)
        return (
            200,
            answer("(B)", usage={"prompt_tokens": sent, "completion_tokens": got, "total_tokens": 0}),
            {},
        )

    server = Server(respond, (200, {"object": "list", "data": []}, {}))
    try:
        options = ("--engine", "openai", "--base-url", server.url, "--calibrate", "1")
        spec = write_spec(workdir, Path("m"), decoding={"max_new_tokens": 9})
        found = read_plan(capsys, "-e", str(spec), *options)
    finally:
        server.close()
    assert found["time"]["prompt_tokens_per_second"] is None
    assert {f["tokens_per_answer"] for f in found["time"]["families"]} == {6}
    plan = small_plan("m", engine={"kind": "openai", "base_url": server.url})
    exact = sum(s * ((len(r.system) + len(r.user)) // 2 + 11) for s, r in all_requests(plan))
    assert found["tokens"]["prompt"] == pytest.approx(exact, rel=0.01)
    assert (workdir / "outputs" / "small-m" / ESTIMATE).is_file()
