"""What this machine has, found out without importing torch, and a rough guess of how fast it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persona_mlflow.estimate import Speed

if TYPE_CHECKING:
    from persona_mlflow.model_size import ModelSize

ROUGH = 3.0
"""A rough figure may be off by this factor, up or down."""

MOST_ROWS = {"cuda": 256, "cpu": 32}
"""Most answers that ``batch_size: auto`` generates together."""

# Part of a GPU's name → dense half-precision TFLOP/s and GB/s of its memory, from the makers' data sheets.
_GPUS = {
    "B200": (2250.0, 8000.0),
    "H200": (989.0, 4800.0),
    "H100": (989.0, 3350.0),
    "A100": (312.0, 1950.0),
    "L40": (181.0, 864.0),
    "L4": (121.0, 300.0),
    "A10": (125.0, 600.0),
    "A6000": (155.0, 768.0),
    "4090": (165.0, 1008.0),
    "3090": (71.0, 936.0),
    "V100": (125.0, 900.0),
    "T4": (65.0, 300.0),
}
# Shares of those rates, and seconds of a step that they do not explain, that transformers comes to.
_GPU_COMPUTE, _GPU_MEMORY, _GPU_STEP = 0.4, 0.5, 0.025
# Shares of a measured matrix product's rate that reading and answering come to on a CPU.
_CPU_READING, _CPU_ANSWERING = 0.55, 0.3
_START, _STORE, _PER_RUN = 12.0, 8.0, 0.1
_FINISH, _FINISH_PER_RUN = 1.5, 0.007
_LOAD_BYTES_PER_SECOND = 5e8


@dataclass(frozen=True)
class Machine:
    """Where a model would run.

    Attributes:
        device: ``cuda`` or ``cpu``.
        name: What it is called.
        memory: Bytes that it has; free ones, on a CPU.
    """

    device: str
    name: str
    memory: float

    @property
    def dtype(self) -> str:
        """What ``dtype: auto`` comes to."""
        return "bfloat16" if self.device == "cuda" else "float32"


def find_machine(device: str = "auto") -> Machine:
    """The GPU that is there, or else the CPU.

    Args:
        device: As `persona_mlflow.spec_sections.LocalEngineSpec` takes it.
    """
    gpu = None if device.startswith("cpu") else _gpu()
    if gpu is not None:
        return Machine("cuda", *gpu)
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine("cpu", f"CPU, {cores} cores", float(psutil.virtual_memory().available))


def _gpu() -> tuple[str, float] | None:
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.splitlines()
        name, _, memory = lines[0].rpartition(",")
        return name.strip(), float(memory) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def rough_speed(
    machine: Machine, size: ModelSize, dtype: str, quantization: str, rows: int, runs: int
) -> Speed | None:
    """Guess how fast a model runs from its size and the machine's rate of computing; None for an unknown GPU.

    A token costs two operations per weight.

    Args:
        machine: Where it runs.
        size: The model's.
        dtype: Its numbers' type.
        quantization: ``none``, ``8bit`` or ``4bit``.
        rows: Answers at once.
        runs: Runs of the experiment.
    """
    weights = size.weight_bytes(dtype, quantization)
    per_token = 2 * size.parameters
    if machine.device == "cuda":
        known = next((rates for part, rates in _GPUS.items() if part in machine.name), None)
        if known is None:
            return None
        tflops, bandwidth = known
        prefill = _GPU_COMPUTE * tflops * 1e12 / per_token
        step = max(weights / (_GPU_MEMORY * bandwidth * 1e9), rows / prefill) + _GPU_STEP
        decode, source = rows / step, f"guessed from the data sheet of {machine.name}"
    else:
        flops = matrix_rate()
        prefill, decode = _CPU_READING * flops / per_token, _CPU_ANSWERING * flops / per_token
        source = f"guessed from this machine's {flops / 1e9:.0f} GFLOP/s in a matrix product"
    fixed = {
        "starting": _START,
        "loading the model": weights / _LOAD_BYTES_PER_SECOND,
        "opening the store": _STORE,
        "summing up": _FINISH + _FINISH_PER_RUN * runs,
    }
    return Speed(prefill, decode, 0.0, fixed, _PER_RUN, source, factor=ROUGH)


def matrix_rate(size: int = 1024, seconds: float = 0.3) -> float:
    """Floating-point operations per second of a float32 matrix product on the CPU: the best of some."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.random((size, size), dtype=np.float32) for _ in range(2))
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
