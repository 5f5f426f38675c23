"""The extractor takes the last definition of a name, and all that it needs, out of cells."""

import ast
import importlib.util
import inspect
import sys
import textwrap

import pytest

from minipaged.course.kit.source import (
    BUILTINS,
    NotFound,
    ParsedCell,
    definitions,
    extract,
    global_names,
    imports,
    is_stub,
    plain_python,
)


def cells(*texts: str) -> list[str]:
    return [textwrap.dedent(text).strip("\n") for text in texts]


@pytest.fixture
def run(tmp_path):
    """Write extracted source to a file, import it and give the object."""
    made = []

    def load(*texts: str, name: str = "f", given: dict[str, str] | None = None):
        extracted = extract(cells(*texts), name, given or {})
        path = tmp_path / f"extracted_{len(made)}.py"
        path.write_text(extracted.source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        made.append(path.stem)
        spec.loader.exec_module(module)
        return getattr(module, name)

    yield load
    for stem in made:
        del sys.modules[stem]


# -------------------------------------------------------------------------- which definition


def test_the_last_definition_wins_over_cells_and_within_one(run):
    f = run("def f(): return 1", "def f(): return 2\ndef f(): return 3", "x = 4")
    assert f() == 3


def test_the_last_of_a_helper_wins_too(run):
    assert run("def g(): return 1", "def f(): return g()", "def g(): return 2")() == 2


def test_the_line_of_the_check_does_not_count_as_a_definition(run):
    assert run("def f(): return 1", "f = check('04.2', f)")() == 1


def test_only_what_is_needed_is_taken():
    extracted = extract(
        cells("import os\nimport math\nA = 1\nB = 2\ndef other(): return A\ndef f(): return B"),
        "f",
        {},
    )
    assert extracted.source == "B = 2\n\n\ndef f(): return B\n"
    assert extracted.needs == ["B = 2"]
    assert extracted.target == "def f(): return B"


def test_the_text_is_taken_as_it_stands():
    text = '@staticmethod\ndef f(a,\n      b):   # why\n    """Says."""\n\n    return  a+b  # sum'
    extracted = extract([f"x = 1\n{text}\ny = 2"], "f", {})
    assert extracted.target == text


# ------------------------------------------------------------------------------- what it needs


def test_helpers_of_helpers_imports_classes_and_constants(run):
    f = run(
        "import math\nfrom collections import Counter as Bag",
        "SIZE = 4\nPAIR = (SIZE, -1)\nlow, high = 1, 9",
        """
        class Base:
            size = SIZE

        class Row(Base):
            def ends(self):
                return PAIR, low, high
        """,
        "def inner(x): return math.floor(x) + Row.size",
        "def outer(x): return inner(x), Bag('aab')['a'], Row().ends()",
        "def f(x): return outer(x)",
    )
    assert f(2.5) == (6, 2, ((4, -1), 1, 9))


def test_helpers_that_call_each_other(run):
    f = run(
        "def even(n): return True if n == 0 else odd(n - 1)",
        "def odd(n): return False if n == 0 else even(n - 1)",
        "def f(n): return even(n)",
    )
    assert (f(6), f(7)) == (True, False)


def test_a_function_that_calls_itself(run):
    assert run("def f(n): return 1 if n == 0 else n * f(n - 1)")(4) == 24


def test_a_helper_that_calls_the_target(run):
    assert run("def g(n): return f(n - 1)\ndef f(n): return n if n < 1 else g(n)")(3) == 0


def test_names_in_annotations_decorators_and_defaults(run):
    f = run(
        "import functools\nfrom typing import Any as Whatever",
        "class Table: pass",
        "Ids = list[int]",
        "START = 3",
        "def twice(g):\n    @functools.wraps(g)\n    def two(*a): return g(*a) * 2\n    return two",
        "@twice\ndef f(x: Ids, y: Whatever = START, *, z: Table | None = None) -> 'Table':\n"
        "    w: Table\n    return x + [y]",
    )
    assert f([1]) == [1, 3, 1, 3]
    assert inspect.signature(f).parameters["z"].default is None


def test_a_class_with_its_bases_decorator_and_methods(run):
    pool = run(
        "from dataclasses import dataclass, field",
        "class Base:\n    def room(self): return len(self.ids) - RESERVED",
        "RESERVED = 1",
        "@dataclass\nclass Pool(Base):\n    ids: list = field(default_factory=lambda: [1, 2, 3])",
        name="Pool",
    )
    assert pool().room() == 2


def test_other_exercises_objects_are_imported_from_the_package(run):
    given = {"BlockPool": "minipaged.block_table"}
    texts = ("class BlockPool:\n    wrong = True", "def f(): return BlockPool(3).num_free")
    assert run(*texts, given=given)() == 3
    assert extract(texts, "f", given).needs == ["from minipaged.block_table import BlockPool"]


def test_results_of_calls_are_not_taken():
    extracted = extract(["x = open('big')\ny = [i for i in 'ab']\ndef f(): return x, y"], "f", {})
    assert extracted.needs == []


def test_calls_that_only_make_a_constant_or_a_type_are_taken(run):
    f = run(
        "import math, collections\nfrom typing import TypeVar",
        "T = TypeVar('T')\nLOW = float('-inf')\nROOT = math.sqrt(4)",
        "Pair = collections.namedtuple('Pair', 'a b')",
        "half = lambda x, by=ROOT: math.floor(x / by)",
        "def f(x: T) -> T: return Pair(LOW, half(x))",
    )
    assert tuple(f(7)) == (float("-inf"), 3)


def test_imports_that_are_tried_and_helpers_by_case(run):
    f = run(
        "try:\n    import no_such_module as m\nexcept ImportError:\n    import math as m",
        "if m.pi > 3:\n    def g(x): return m.floor(x)\nelse:\n    g = None",
        "async def later(x): return g(x)",
        "def f(x):\n    import asyncio\n    return asyncio.run(later(x))",
    )
    assert f(2.5) == 2
    assert extract(["if True:\n    x = 1\n    print(x)\ndef f(): return x"], "f", {}).needs == []


def test_a_helper_with_a_builtins_name_is_taken_and_a_variable_is_not(run):
    f = run("sum = 0\ndef max(a, b): return 'mine'", "def f(): return max(1, 2), sum([1, 2])")
    assert f() == ("mine", 3)


def test_a_star_import_is_taken_where_a_name_is_unknown(run):
    cell = "from math import *"
    assert run(cell, "def f(x): return floor(x)")(2.5) == 2
    assert extract([cell, "def f(x): return x"], "f", {}).needs == []


def test_a_future_import_of_any_cell_counts(run):
    f = run(
        "import math\nfrom __future__ import annotations",
        "class Row:\n    def next(self) -> Row: return Row()",
        "def f(x: Unknown): return math.pi, Row().next()",
    )
    assert type(f(1)[1]).__name__ == "Row"


def test_changing_an_entry_or_an_attribute_defines_nothing(run):
    f = run(
        "SIZES = {'a': 1}\nkey = 'a'",
        "SIZES[key] = 5",
        "def f(): return SIZES['a'], key",
        "f.calls = 3",
        "f[0] = 1",
    )
    assert f() == (1, "a")


def test_imports_come_first():
    source = extract(
        ["import math\ndef a(): return 1\ndef f(): return a(), math.pi"], "f", {}
    ).source
    assert source.startswith("import math\n")


def test_chained_and_annotated_assignments(run):
    assert run("a = b = 3\nc: int = 4\nd: int\ndef f(): return a, b, c")() == (3, 3, 4)


def test_global_names_know_quoted_annotations_and_the_line_of_the_first_use():
    code = "def f(x: 'Table', y: 'a b') -> list:\n    q = x\n    return print(z, q,\n z)\nw = 1"
    names = global_names(ast.parse(code))
    assert names.bound == {"f", "w"}
    assert names.used.keys() - BUILTINS == {"Table", "z"}
    assert (names.used["Table"], names.used["z"], names.used["print"]) == (1, 3, 3)


def test_imports_are_found_wherever_they_are_relative_ones_too():
    code = "import a.b, c as d\ndef f():\n    from .x import y as z\n    from .. import w\n"
    assert sorted(imports(ast.parse(code), "p.q")) == [
        ("a.b", "", "a"),
        ("c", "", "d"),
        ("p", "w", "w"),
        ("p.q.x", "y", "z"),
    ]


def test_parsed_cells_are_not_parsed_again(monkeypatch):
    texts = ["import math\nx = (", "import math\nA = 1", "def f(): return math, A", "def g(): f()"]
    parsed = [ParsedCell(text) for text in texts]
    assert parsed[2].defined("f").name == "f" and parsed[1].defined("f") is None
    assert parsed[0].tree is None and "never closed" in str(parsed[0].error)
    calls, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda *args: calls.append(args) or parse(*args))
    f, g = extract(parsed, "f", {}), extract(parsed, "g", {"f": "minipaged.f"})
    assert calls == []
    assert (f.needs, g.needs) == (["import math", "A = 1"], ["from minipaged.f import f"])
    assert len(f.notes) == 1


# --------------------------------------------------------------------------- IPython's lines


def test_magics_and_shell_lines_are_left_out(run):
    f = run(
        """
        %matplotlib inline
        !pip list
        ?print
        print?
        files = !ls
        took = %timeit -o 1 + 1
        %timeit 3 +
        def f():
            %time x = 3
            if True:
                !ls
            return 7 % 4
        """
    )
    assert f() == 3


@pytest.mark.parametrize(
    "cell",
    [
        "%%time\n\ndef f():\n    return 1",
        "  %%capture out\ndef f():\n    return 1",
        "    def f():\n        return 1\n    x = 2",
        " \n\n    def f():\n\n        return 1",
        ">>> def f():\n...     return 1\n...\n>>> x = 2",
        "In [3]: def f():\n   ...:     return 1",
    ],
)
def test_what_ipython_takes_away_is_taken_away(run, cell):
    extracted = extract([cell], "f", {})
    assert extracted.target.startswith("def f():")
    space: dict = {}
    exec(extracted.source, space)
    assert space["f"]() == 1


def test_a_line_of_a_string_or_an_expression_that_looks_like_a_magic_stays(run):
    f = run(
        '''
        TEXT = """
        %d of them
        !important
        really?
        """
        NUMBER = (17
            % 5)
        OTHER = 17 \\
            % 5
        %matplotlib inline
        def f():
            """What?"""
            return TEXT.split(), NUMBER, OTHER  # is it?
        '''
    )
    assert f() == (["%d", "of", "them", "!important", "really?"], 2, 2)


def test_magics_do_not_move_lines():
    cell = "%a\nx = 1\n!b\ny = 2"
    assert plain_python(cell) == "pass\nx = 1\npass\ny = 2"


@pytest.mark.parametrize("head", ["%%timeit", "%%bash", "\n%%writefile a.py"])
def test_a_cell_of_a_cell_magic_defines_nothing(head):
    with pytest.raises(NotFound, match="no cell defines f"):
        extract([f"{head}\ndef f(): return 1"], "f", {})
    assert "f" in definitions(["def f(): return 1", f"{head}\nnot Python ("])


@pytest.mark.parametrize("mark", ["\u2028", "\x0c", "\x1c", "\x85"])
def test_characters_that_only_some_take_for_line_ends(run, mark):
    assert run(f"a = 'x{mark}y'\n\ndef g():\n    return 1\n", "def f():\n    return a, 2")() == (
        f"x{mark}y",
        2,
    )
    text = f"def f():\n    return 'x{mark}y'"
    assert extract([f"s = '{mark}{mark}'\n{text}\n"], "f", {}).target == text


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_systems_line_ends(end):
    cell = end.join(["x = 1", "def f():", "    return 2", ""])
    assert extract([cell], "f", {}).target == "def f():\n    return 2"


# ---------------------------------------------------------------------------- what goes wrong


def test_a_cell_that_is_not_python_is_left_out_and_named():
    extracted = extract(["x = (", "def f(): return 1", "\0"], "f", {})
    assert extracted.target == "def f(): return 1"
    assert [note.split(",")[0] for note in extracted.notes] == [
        "cell 1 was left out",
        "cell 3 was left out",
    ]
    assert "'(' was never closed" in extracted.notes[0]


def test_the_broken_cell_of_the_definition_itself_is_named():
    with pytest.raises(NotFound) as caught:
        extract(["x = 1", "def f(:\n    return"], "f", {})
    assert str(caught.value).startswith(
        "no cell defines f as a function or class. cell 2 was left out, it is not Python: "
    )


@pytest.mark.parametrize(
    "texts", [[], ["x = 1"], ["f = 3"], ["import f"], ["x = 1\n    def f(): pass"]]
)
def test_a_missing_definition_says_so(texts):
    with pytest.raises(NotFound, match=r"^no cell defines f as a function or class\."):
        extract(texts, "f", {})


def test_a_definition_inside_another_does_not_count():
    with pytest.raises(NotFound):
        extract(["if True:\n    def f(): return 1", "def g():\n    def f(): return 1"], "f", {})


# -------------------------------------------------------------------------------------- files


def test_the_extracted_source_has_a_file_to_read_from(run):
    f = run("import math", "def f(x):\n    return math.sqrt(x)")
    assert f(9) == 3
    assert inspect.getsource(f) == "def f(x):\n    return math.sqrt(x)\n"


# -------------------------------------------------------------------------------------- stubs


@pytest.mark.parametrize(
    ("body", "stub"),
    [
        ("raise NotImplementedError", True),
        ("raise NotImplementedError('later')", True),
        ("'''Says.'''\n    raise NotImplementedError", True),
        ("'''Says.'''", False),
        ("pass", False),
        ("x = 1\n    raise NotImplementedError", False),
        ("raise ValueError", False),
        ("return 1", False),
    ],
)
def test_a_function_whose_body_only_raises_is_a_stub(body, stub):
    node = ast.parse(f"def f():\n    {body}").body[0]
    assert is_stub(node, ()) is stub


def test_a_class_is_a_stub_while_one_of_its_todo_methods_is():
    def pool(take: str, give: str) -> ast.stmt:
        methods = f"def take(self): {take}\n    def give(self): {give}\n    def size(self): {later}"
        return ast.parse(f"class Pool:\n    {methods}").body[0]

    later = "raise NotImplementedError"
    assert is_stub(pool(later, later), ("take", "give"))
    assert is_stub(pool("return 1", later), ("take", "give"))
    assert not is_stub(pool("return 1", "return 2"), ("take", "give"))
    assert not is_stub(pool("return 1", later), ("take",))


def test_a_helper_within_that_is_a_stub_makes_none_of_a_function():
    node = ast.parse("def f():\n    def g(): raise NotImplementedError\n    return 1").body[0]
    assert not is_stub(node, ())


def test_parameters_and_local_names_are_not_taken_for_globals():
    cells = [
        "model = load()",
        "size = model.size",
        "width = 3",
        "def f(size, x):\n    width = [size for size in x]\n    return width",
    ]
    extracted = extract(cells, "f", {})
    assert extracted.needs == []
