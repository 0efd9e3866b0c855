"""Which process of how many this is, what it may use of its machine, and starting the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from persona_mlflow.errors import UserError

# What torchrun and accelerate set, and what MPI's launchers do.
_NAMES = {
    "rank": ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
    "world": ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    "local_rank": (
        "LOCAL_RANK",
        "MPI_LOCALRANKID",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
    ),
    "local_world": (
        "LOCAL_WORLD_SIZE",
        "MPI_LOCALNRANKS",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
}
_GROUP = ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")
_SECONDS_TO_END = 10.0


@dataclass(frozen=True)
class Place:
    """Where this process stands among those that share the work.

    Attributes:
        rank: Its number among all, on all machines; 0 is the main process.
        world: How many there are.
        local_rank: Its number on its machine.
        local_world: How many there are on its machine; 0 where the launcher does not say.
        to_start: How many further processes of this machine are still to be started, by this one.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 0
    to_start: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process logs: one of all, not one of each machine (pitfall X2)."""
        return self.rank == 0


def find_place(asked: int | None = None) -> Place:
    """Find out from the launcher, or from what was asked for, which process this is.

    Args:
        asked: The number of processes that the user wants of this machine; without, what the launcher says.

    Raises:
        UserError: The launcher's variables make no sense, or both it and the user name a number.
    """
    values = {key: _read(names) for key, names in _NAMES.items()}
    world = values["world"] or 1
    if world > 1:
        if asked not in (None, 1, world):
            raise UserError(f"--num-processes {asked}: this is one of {world} already; leave it out")
        if values["rank"] is None:
            raise UserError(f"WORLD_SIZE={world}, but RANK is not set: which of the processes is this?")
        place = Place(values["rank"], world, values["local_rank"] or 0, values["local_world"] or 0)
        if not (0 <= place.rank < world and place.local_rank >= 0):
            raise UserError(f"RANK={place.rank}: not from 0 to {world - 1}, as WORLD_SIZE={world} has it")
        return place
    if asked is not None:
        if asked < 1:
            raise UserError(f"--num-processes {asked}: give 1 or more")
        return Place(world=asked, local_world=asked, to_start=asked - 1)
    return _asked_of_accelerate() or Place()


def _read(names: Sequence[str]) -> int | None:
    for name in names:
        text = os.environ.get(name)
        if text:
            if not text.lstrip("-").isdecimal():
                raise UserError(f"{name}={text}: not a whole number; unset it")
            return int(text)
    return None


def _asked_of_accelerate() -> Place | None:
    """What ``accelerate launch --num_processes N`` was asked for on a machine without several GPUs.

    There it starts a single process, whatever N is, and tells it neither a rank nor N: only its own command
    line does. That process then starts the others.
    """
    if "ACCELERATE_MIXED_PRECISION" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    import psutil
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    parent = psutil.Process().parent()
    words = parent.cmdline() if parent is not None else []
    ends = ("accelerate-launch", "commands.launch", "launch.py")
    starts = [i for i, word in enumerate(words) if word == "launch" or word.endswith(ends)]
    if not starts:
        return None
    launch = launch_command_parser().parse_args(words[starts[0] + 1 :])
    world, machines = launch.num_processes, launch.num_machines or 1
    if world is None:  # then it stands in the file that `accelerate config` writes
        world = load_config_from_file(launch.config_file).num_processes or 1
    local = max(1, world // machines)
    if local * machines == 1:
        return None
    first = (launch.machine_rank or 0) * local
    return Place(first, local * machines, 0, local, to_start=local - 1)


def leave_group(place: Place) -> None:
    """Hide the launcher's variables from the libraries, which would form a process group of them.

    A process group waits for all of its members, and fails when one does; even a group of one takes an
    address.
    """
    for name in (*_GROUP, *(name for names in _NAMES.values() for name in names)):
        os.environ.pop(name, None)
    if not place.is_main:
        # The run of `mlflow run` is the main process's parent run.
        os.environ.pop("MLFLOW_RUN_ID", None)


def share_threads(place: Place) -> None:
    """Divide the processor between this process and those that it is going to start."""
    if place.to_start:
        # More threads than cores make torch many times slower.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // place.local_world)))


def share_gpus(place: Place, device: str) -> None:
    """Leave only this process's GPUs visible.

    They are dealt out evenly, a model being spread over those of its process; more processes than GPUs share
    them. To be called before torch has looked for GPUs.

    Args:
        place: Which process this is.
        device: What the user asked for; any device but ``auto`` is left as it is.
    """
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    if place.world == 1 or device != "auto" or on_cpu:
        return
    gpus = _visible_gpus()
    if len(gpus) > 1:
        mine = own_gpus(gpus, place)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        import torch

        if torch.cuda.device_count() != len(mine):
            raise UserError(
                f"process {place.rank}: cannot be limited to its GPUs ({','.join(mine)}), as torch has "
                "opened them all; set CUDA_VISIBLE_DEVICES for each process"
            )


def own_gpus(gpus: Sequence[str], place: Place) -> list[str]:
    """Those of a machine's GPUs that are a process's."""
    if place.local_world == 0 or place.local_world > len(gpus):
        return [gpus[place.local_rank % len(gpus)]]
    first, last = (len(gpus) * (place.local_rank + i) // place.local_world for i in (0, 1))
    return list(gpus[first:last])


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def started_helpers(place: Place, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Start the processes of this machine that are still to be started, and end them with the block.

    Args:
        place: This process, the first of its machine.
        command: Arguments of ``persona-mlflow`` that all of them have in common.
        environment: What they inherit.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for i in range(1, place.to_start + 1):
            other = replace(place, rank=place.rank + i, local_rank=i, to_start=0)
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "persona_mlflow", *command],
                    env={**environment, **launcher_variables(other)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is this process's to hand on
                )
            )
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def launcher_variables(place: Place) -> dict[str, str]:
    """The variables that tell a process its place, as ``torchrun`` sets them."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world),
    }
