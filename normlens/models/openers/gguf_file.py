"""The GGUF file of an installed package: one file, or parts in packages of their own.

Nothing is imported from these packages: their files are found through their metadata.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackagePath, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from normlens.errors import CorruptModel
from normlens.models.listing import PART, Packaged

SUMS = "SHA256SUMS"
BLOCK = 1 << 20


@dataclass(frozen=True)
class StoredGguf:
    """A GGUF file as a package stores it.

    Attributes:
        name: of the whole file.
        pieces: its parts in order; a single one is the file itself.
        key: tells two contents apart; part of the name of a cache directory.
        sha256: of the joined file as the package declares it, None for a single piece.
    """

    name: str
    pieces: tuple[Path, ...]
    key: str
    sha256: str | None = None


def stored_gguf(packaged: Packaged, installed: Distribution) -> StoredGguf:
    """Where the parts of the file are.

    Raises:
        PackageNotFoundError: a package with a part is not installed.
        CorruptModel: there is no GGUF file, a part is missing, or the digest is.
    """
    if packaged.parts:
        return _in_parts(packaged, installed)
    for file in installed.files or ():
        path = _path(installed, file)
        if file.suffix == ".gguf" and path.is_file():
            key = file.hash.value if file.hash is not None else installed.version
            return StoredGguf(path.name, (path,), key.replace("_", "-"))
    raise CorruptModel(
        f"the installed package {packaged.distribution} holds no GGUF file; "
        f"reinstall it: {packaged.install}"
    )


@contextmanager
def whole_file(stored: StoredGguf, scratch: Path) -> Iterator[Path]:
    """The file; parts are joined below ``scratch`` for as long as the context lasts.

    Raises:
        CorruptModel: the joined file has another digest than the package declares.
        OSError: a part cannot be read or the file cannot be written.
    """
    if len(stored.pieces) == 1:
        yield stored.pieces[0]
        return
    with TemporaryDirectory(dir=scratch, prefix=".gguf-") as directory:
        path = Path(directory) / stored.name
        digest = hashlib.sha256()
        with path.open("wb") as target:
            for piece in stored.pieces:
                with piece.open("rb") as source:
                    while block := source.read(BLOCK):
                        digest.update(block)
                        target.write(block)
        if digest.hexdigest() != stored.sha256:
            raise CorruptModel(
                f"the parts of {stored.name} have SHA-256 {digest.hexdigest()}, their package "
                f"declares {stored.sha256}"
            )
        yield path


def file_type(path: Path) -> str:
    """The quantisation that a GGUF file declares, such as ``Q4_1`` or ``Q4_K_M``.

    Walks the header itself: the reader of the ``gguf`` package makes an array object for
    every entry of the vocabulary, which takes half a minute for one of 262,144.

    Raises:
        ValueError: not a GGUF file.
        struct.error: the file ends inside its header.
    """
    from gguf import GGUFReader, GGUFValueType, LlamaFileType

    sizes = {
        int(kind): kind_type().itemsize for kind, kind_type in GGUFReader.gguf_scalar_to_np.items()
    }
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError("not a GGUF file")
        header = _Header(data, sizes, int(GGUFValueType.STRING), int(GGUFValueType.ARRAY))
        (fields,) = struct.unpack_from("<Q", data, 16)
        at = 24
        for _ in range(fields):
            start, at = at, header.after_string(at)
            (kind,) = struct.unpack_from("<I", data, at)
            if data[start + 8 : at] == b"general.file_type":
                (value,) = struct.unpack_from("<I", data, at + 4)
                return LlamaFileType(value).name.removeprefix("MOSTLY_")
            at = header.after_value(at + 4, kind)
    return "quantised"


@dataclass(frozen=True)
class _Header:
    """Steps over the values of a GGUF header, little-endian, as the format lays them out."""

    data: mmap.mmap
    sizes: dict[int, int]
    string: int
    array: int

    def after_string(self, at: int) -> int:
        return at + 8 + struct.unpack_from("<Q", self.data, at)[0]

    def after_value(self, at: int, kind: int) -> int:
        if kind == self.string:
            return self.after_string(at)
        if kind != self.array:
            return at + self.sizes[kind]
        inner, count = struct.unpack_from("<IQ", self.data, at)
        at += 12
        if inner in self.sizes:
            return at + count * self.sizes[inner]
        for _ in range(count):
            at = self.after_value(at, inner)
        return at


def _in_parts(packaged: Packaged, installed: Distribution) -> StoredGguf:
    pieces = tuple(
        path
        for name in packaged.parts
        for path in _matching(distribution(name), PART)
        if path.is_file()
    )
    if len(pieces) != len(packaged.parts):
        raise CorruptModel(
            f"{len(pieces)} of {len(packaged.parts)} parts of {packaged.id} are there; "
            f"reinstall it: {packaged.install}"
        )
    for path in _matching(installed, re.compile(re.escape(SUMS))):
        declared = path.read_text(encoding="ascii").split() if path.is_file() else []
        if len(declared) == 2 and re.fullmatch(r"[0-9a-f]{64}", declared[0]):
            return StoredGguf(Path(declared[1]).name, pieces, declared[0], declared[0])
    raise CorruptModel(
        f"the installed package {packaged.distribution} declares no SHA-256 of its file in "
        f"{SUMS}; reinstall it: {packaged.install}"
    )


def _matching(installed: Distribution, name: re.Pattern[str]) -> list[Path]:
    return [_path(installed, file) for file in installed.files or () if name.fullmatch(file.name)]


def _path(installed: Distribution, file: PackagePath) -> Path:
    return Path(str(installed.locate_file(file)))
