"""What was handed in: finds notebooks in files, folders and zips, and the definitions in them.

Nothing of a submission is believed: not its size, its names, its form or its metadata. What can
be read is read, what was odd about it becomes a warning, and what can't be read costs only itself.
"""

import hashlib
import io
import json
import lzma
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import msgspec

from ..kit.catalogue import Exercise, catalogue
from ..kit.source import Extracted, NotFound, ParsedCell, extract, is_stub

MAX_NOTEBOOK = 20 << 20
MAX_CODE = 400_000  # characters of all code cells of a notebook
MAX_LINES = 10_000
MAX_CELLS = 5_000
MAX_FILES = 200
SKIPPED_FOLDERS = {"__MACOSX", ".ipynb_checkpoints", "__pycache__", ".git", "node_modules"}
UNREADABLE = (  # all that a file made by others may raise in those who read it
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


@dataclass(frozen=True, slots=True)
class Submission:
    """Something that one student handed in: a notebook, a folder or a zip.

    Attributes:
        student: what it is called, the name of its file or folder.
        path: where it is.
    """

    student: str
    path: Path


@dataclass(frozen=True, slots=True)
class File:
    """A notebook's bytes as they were handed in."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Cell:
    """A cell that may hold code.

    Attributes:
        place: "cell 12 of 04_block_tables.ipynb".
        text: as it was handed in.
        exercise: the exercise's id that its metadata names, or None.
        markdown: it was handed in as Markdown.
        magics: how many of its lines only IPython knows.
    """

    place: str
    text: str
    exercise: str | None
    markdown: bool = False
    magics: int = 0

    @cached_property
    def code(self) -> ParsedCell:
        """The text as Python, parsed when it is first looked at, and only then."""
        return ParsedCell(self.text)

    def defines(self, name: str) -> bool:
        """Whether it defines a function or class of that name."""
        return name in self.text and self.code.defined(name) is not None

    def is_stub(self, exercise: Exercise) -> bool:
        """Whether its definition of the exercise's object has not been worked on."""
        node = self.code.defined(exercise.name)
        return node is not None and is_stub(node, exercise.todo)


@dataclass(slots=True)
class Contents:
    """All that could be read of a submission.

    Attributes:
        cells: in the order of the notebooks' names and of their cells.
        digest: of the files' names and bytes.
    """

    cells: list[Cell] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    digest: str = ""


# --- which submissions there are -----------------------------------------------------------------


def find_submissions(paths: list[Path], single: bool = False) -> list[Submission]:
    """The submissions that some paths mean, each with a name of its own.

    A folder is one student's if it holds nothing but notebooks of lessons; else each folder, zip
    and notebook in it is a student's.

    Args:
        single: every path is one student's.

    Raises:
        FileNotFoundError: naming a path that is not there.
    """
    found: list[Submission] = []
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise FileNotFoundError(f"there is no {path}")
        if path.is_dir() and not single and not is_one_students(path):
            entries = sorted(path.iterdir(), key=lambda entry: entry.name)
            found += [Submission(name_of(e), e) for e in entries if may_be_submission(e)]
        else:
            found.append(Submission(name_of(path), path))
    taken = {item.student for item in found}
    seen: set[str] = set()
    unique = []
    for item in found:
        name, number = item.student, 1
        while name in seen or (number > 1 and name in taken):  # a student may be called "a (2)"
            number += 1
            name = f"{item.student} ({number})"
        seen.add(name)
        unique.append(Submission(name, item.path))
    return unique


def name_of(path: Path) -> str:
    """A submission's name."""
    if path.suffix in (".ipynb", ".zip"):
        return path.stem
    return path.name if path.name not in ("", "..") else path.resolve().name


def may_be_submission(path: Path) -> bool:
    """Whether an entry of a class's folder is one student's work."""
    if path.name.startswith(".") or path.name in SKIPPED_FOLDERS:
        return False
    return path.is_symlink() or path.is_dir() or path.suffix.lower() in (".ipynb", ".zip")


def is_one_students(folder: Path) -> bool:
    """Whether a folder is one student's: it has notebooks, each named as lessons are."""
    entries = [entry for entry in folder.iterdir() if may_be_submission(entry)]
    notebooks = [entry for entry in entries if entry.suffix.lower() == ".ipynb"]
    if any(entry.suffix.lower() == ".zip" for entry in entries):
        return False
    if notebooks:
        return all(re.match(r"\d\d[_-]", entry.name) for entry in notebooks)
    return not entries


# --- reading, without trust ----------------------------------------------------------------------


def read(submission: Submission) -> Contents:
    """Read a submission; whatever is wrong with it is in its warnings."""
    contents = Contents()
    found = hashlib.sha256()
    for file in first_files(submission, contents.warnings):
        found.update(digest_of(file))
        contents.files.append(file.name)
        try:
            contents.cells += read_notebook(file, contents.warnings)
        except UNREADABLE as error:
            contents.warnings.append(f"{file.name} could not be read: {error}")
    if not contents.files:
        contents.warnings.append("there is no notebook in it")
    contents.digest = found.hexdigest()
    return contents


def digest_of(file: File) -> bytes:
    """A digest of a file's name and bytes."""
    return hashlib.sha256(file.name.encode(errors="replace") + b"\0" + file.data).digest()


def digest(submission: Submission) -> str:
    """The digest of `Contents`, without looking into the notebooks."""
    found = hashlib.sha256()
    for file in first_files(submission, []):
        found.update(digest_of(file))
    return found.hexdigest()


def first_files(submission: Submission, warnings: list[str]) -> Iterator[File]:
    """A submission's notebooks, up to a number; whatever is wrong becomes a warning."""
    try:
        for count, file in enumerate(files_of(submission.path, warnings)):
            if count == MAX_FILES:
                warnings.append(f"only the first {MAX_FILES} notebooks were read")
                break
            yield file
    except UNREADABLE as error:
        warnings.append(f"it could not be read: {error}")


def files_of(path: Path, warnings: list[str]) -> Iterator[File]:
    """The notebooks of a file, folder or zip, in the order of their names."""
    if path.is_symlink():
        warnings.append(f"{path.name} is a symbolic link, which is not followed")
    elif path.is_dir():
        yield from files_of_folder(path, warnings)
    elif path.suffix.lower() == ".zip":
        yield from files_of_zip(path, warnings)
    else:
        if data := read_bytes(path, path.name, warnings):
            yield File(path.name, data)


def files_of_folder(folder: Path, warnings: list[str]) -> Iterator[File]:
    """The notebooks below a folder; no link is followed."""
    paths = []

    def unreadable(error: OSError) -> None:
        warnings.append(f"{Path(str(error.filename)).name} could not be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=unreadable, followlinks=False):
        for name in sorted(folders):
            if os.path.islink(os.path.join(place, name)):
                warnings.append(f"{name} is a symbolic link, which is not followed")
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        paths += [Path(place, name) for name in names if is_notebook(name)]
        if len(paths) > 10 * MAX_FILES:
            warnings.append("too many files")
            break
    zips = [path for path in sorted(folder.glob("*.zip")) if not path.is_symlink()]
    for path in zips:
        yield from files_of_zip(path, warnings)
    for path in sorted(paths, key=lambda path: by_name(path.relative_to(folder).as_posix())):
        name = path.relative_to(folder).as_posix()
        if data := read_bytes(path, name, warnings):
            yield File(name, data)


def is_notebook(name: str) -> bool:
    """Whether a file's name is a notebook's."""
    return name.lower().endswith(".ipynb") and not PurePosixPath(name).name.startswith("._")


def by_name(name: str) -> tuple[str, bool, str]:
    """Sorts copies of a lesson's notebook before it: the last definition counts."""
    path = PurePosixPath(name)
    lesson = re.match(r"\d\d_\w+", path.name)
    return (lesson[0] if lesson else path.name, lesson is not None and lesson[0] == path.stem, name)


def read_bytes(path: Path, name: str, warnings: list[str]) -> bytes | None:
    """A regular file's bytes; None with a warning where it is not one, or too large."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags)
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        warnings.append(f"{name} was not read: {why}")
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            warnings.append(f"{name} was not read: it is not an ordinary file")
            return None
        data = file.read(MAX_NOTEBOOK + 1)
    if len(data) > MAX_NOTEBOOK:
        warnings.append(f"{name} was not read: it has more than {MAX_NOTEBOOK >> 20} MB")
        return None
    return data or b" "


def files_of_zip(path: Path, warnings: list[str]) -> Iterator[File]:
    """The notebooks of a zip, read in memory: nothing is unpacked into files."""
    data = read_bytes(path, path.name, warnings)
    if data is None:
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except UNREADABLE as error:
        warnings.append(f"{path.name} could not be read: {error}")
        return
    total = 0
    with archive:
        infos = [info for info in archive.infolist() if is_notebook(info.filename)]
        for info in sorted(infos, key=lambda info: by_name(info.filename))[: MAX_FILES + 1]:
            place = PurePosixPath(info.filename.replace("\\", "/"))
            if set(place.parts) & SKIPPED_FOLDERS:
                continue
            if place.is_absolute() or ".." in place.parts or re.match(r"\w:", info.filename):
                warnings.append(f"{info.filename} was not read: its name leads out of the zip")
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                warnings.append(f"{info.filename} was not read: it is a symbolic link")
                continue
            if info.flag_bits & 1:
                warnings.append(f"{info.filename} was not read: it is encrypted")
                continue
            try:
                with archive.open(info) as file:
                    text = file.read(MAX_NOTEBOOK + 1)
            except UNREADABLE as error:
                warnings.append(f"{info.filename} could not be read: {error}")
                continue
            total += len(text)
            if len(text) > MAX_NOTEBOOK or total > 5 * MAX_NOTEBOOK:
                warnings.append(f"{info.filename} was not read: it is too large when unpacked")
                if total > 5 * MAX_NOTEBOOK:
                    break
                continue
            yield File(place.as_posix(), text)


class Notebook(msgspec.Struct):
    """What is read of a notebook; a cell of another form is no reason to refuse the others."""

    cells: list[Any]
    nbformat: Any = None


class Worksheet(msgspec.Struct):
    """The place of the cells in notebooks before format 4."""

    cells: list[Any]


class OldNotebook(msgspec.Struct):
    """A notebook before format 4."""

    worksheets: list[Any]
    nbformat: Any = None


class WrittenCell(msgspec.Struct):
    """A cell of a notebook; before format 4 its text is its input."""

    cell_type: str
    source: str | list[str] | None = None
    input: str | list[str] = ""
    metadata: Any = None

    @property
    def text(self) -> str:
        """The text, without what no file could hold."""
        text = self.input if self.source is None else self.source
        text = text if isinstance(text, str) else "".join(text)
        return text.encode("utf-8", "replace").decode().replace("\0", "")


class OwnTag(msgspec.Struct):
    exercise: str


class OwnMetadata(msgspec.Struct):
    """What the builder says of a cell."""

    minipaged: OwnTag


class NbgradersTag(msgspec.Struct):
    grade_id: Annotated[str, msgspec.Meta(pattern=r"^ex-\d\d-\d+$")]


class NbgradersMetadata(msgspec.Struct):
    """What nbgrader needs to be told of a cell."""

    nbgrader: NbgradersTag


Model = TypeVar("Model", bound=msgspec.Struct)


def as_model(value: Any, model: type[Model]) -> Model | None:
    """What was read of JSON as a model; None where it has another form."""
    try:
        return msgspec.convert(value, model)
    except (msgspec.MsgspecError, ValueError):
        return None


def read_notebook(file: File, warnings: list[str]) -> list[Cell]:
    """The cells of a notebook that may hold code.

    Raises:
        ValueError: saying why it is not a notebook.
    """
    written = cells_of(file, warnings)
    if len(written) > MAX_CELLS:
        raise ValueError(f"it has more than {MAX_CELLS} cells")
    models = [as_model(cell, WrittenCell) for cell in written]
    if odd := models.count(None):
        warnings.append(f"{file.name}: {odd} cells have no form that is known")
    found = [
        cell
        for number, model in enumerate(models, 1)
        if model and (cell := code_cell(model, f"cell {number} of {file.name}", warnings))
    ]
    code = [cell.text for cell in found if not cell.markdown]
    if sum(map(len, code)) > MAX_CODE or sum(text.count("\n") for text in code) > MAX_LINES:
        raise ValueError(f"it holds more than {MAX_CODE} characters or {MAX_LINES} lines of code")
    return found


def cells_of(file: File, warnings: list[str]) -> list[Any]:
    """The cells of a notebook of any format, whatever their form; ValueError as `read_notebook`."""
    try:
        content = json.loads(file.data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        what = "it is empty" if not file.data.strip() else f"it is not JSON ({error})"
        raise ValueError(what) from None
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None
    if type(content) is not dict:
        raise ValueError("it is not a notebook")
    notebook = as_model(content, Notebook) or as_model(content, OldNotebook)
    if notebook is None:
        raise ValueError("it is not a notebook: it has no cells")
    if notebook.nbformat != 4:
        said = str(notebook.nbformat)[:20]
        warnings.append(f"{file.name} says that its format is {said!r}, not 4")
    if isinstance(notebook, Notebook):
        return notebook.cells
    sheets = [as_model(sheet, Worksheet) for sheet in notebook.worksheets]
    return [cell for sheet in sheets if sheet for cell in sheet.cells]


def code_cell(cell: WrittenCell, place: str, warnings: list[str]) -> Cell | None:
    """A cell that may hold code; None for one that can't, or that would take too long to read."""
    text, markdown = cell.text, cell.cell_type != "code"
    magics = sum(line.lstrip().startswith(("%", "!")) for line in text.split("\n"))
    if cell.cell_type not in ("code", "markdown", "raw") or (markdown and len(text) > 50_000):
        return None
    if not markdown and magics * len(text) > 1_000_000:
        warnings.append(f"{place} was left out: too many lines that only IPython knows")
        return None
    if len(text) > MAX_CODE:  # data, not a solution
        warnings.append(f"{place} was left out: it has more than {MAX_CODE} characters")
        return None
    return Cell(place, text, exercise_of(cell.metadata), markdown, magics)


def exercise_of(metadata: Any) -> str | None:
    """The exercise that a cell's metadata names, its own or nbgrader's."""
    if own := as_model(metadata, OwnMetadata):
        return own.minipaged.exercise
    if given := as_model(metadata, NbgradersMetadata):
        return given.nbgrader.grade_id.removeprefix("ex-").replace("-", ".")
    return None


# --- one exercise's definition -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """An exercise's definition, what it needs, and what was odd about it.

    Attributes:
        stub: nothing of it has been written yet.
    """

    extracted: Extracted
    stub: bool
    warnings: tuple[str, ...]


def find(exercise: Exercise, cells: list[Cell]) -> Found:
    """The definition that counts: by exercise id, else by name; of several the last.

    Raises:
        NotFound: when there is none.
    """
    chosen, warnings = choose(exercise, cells)
    if chosen.magics:
        where = f"{exercise.id}: {chosen.magics} lines"
        warnings.append(f"{where} that only IPython knows were left out")
    earlier = [cell.code for cell in cells if not cell.markdown and cell is not chosen]
    given = {e.name: e.module for e in catalogue().values() if e.id != exercise.id}
    extracted = extract([*earlier, chosen.code], exercise.name, given)
    return Found(extracted, chosen.is_stub(exercise), tuple(warnings))


def choose(exercise: Exercise, cells: list[Cell]) -> tuple[Cell, list[str]]:
    """The cell whose definition counts, and what is odd about it; NotFound as `find`."""
    named = [cell for cell in cells if cell.exercise == exercise.id]
    defining = [cell for cell in cells if not cell.markdown and cell.defines(exercise.name)]
    tagged = [cell for cell in defining if cell.exercise == exercise.id]
    others = [cell for cell in defining if cell.exercise != exercise.id]
    written = [cell for cell in others if not cell.is_stub(exercise)]
    if tagged and not (tagged[-1].is_stub(exercise) and written):
        return tagged[-1], what_else(exercise, tagged, written)
    if others:
        chosen = (written or others)[-1]
        if not named:
            why = f"no cell says that it is exercise {exercise.id}"
        else:
            state = "is untouched" if tagged else "does not define it"
            why = f"the cell of {exercise.id} {state}"
        return chosen, [f"{why}; found by the name {exercise.name} in {chosen.place}"]
    texts = [cell for cell in cells if cell.markdown and cell.defines(exercise.name)]
    if texts:
        chosen = ([cell for cell in texts if cell.exercise == exercise.id] or texts)[-1]
        return chosen, [f"{chosen.place} is not a code cell; it was read as code"]
    broken = [cell for cell in named if not cell.markdown]
    if broken:
        raise NotFound(f"the cell does not define {exercise.name}{why_unreadable(broken[-1])}")
    raise NotFound(f"no cell defines {exercise.name}")


def what_else(exercise: Exercise, tagged: list[Cell], written: list[Cell]) -> list[str]:
    """What is said where an exercise's own cell counts and others define its object too."""
    if len(tagged) > 1:
        places = " and ".join(cell.place for cell in tagged)
        return [f"{exercise.id} is there twice, in {places}: the last counts"]
    if written and written[-1].exercise is None:
        where = written[-1].place
        return [f"{where} defines {exercise.name} too: the exercise's own cell counts"]
    return []


def why_unreadable(cell: Cell) -> str:
    """What Python says of a cell, or nothing."""
    if not cell.text.strip():
        return ": there is no Python in it"
    if isinstance(cell.code.error, RecursionError | MemoryError):
        return ": it is nested too deep"
    return f": it is not Python ({cell.code.error})" if cell.code.error else ""
