"""The benchmark compares like with like, in turns, and says what it measured."""

import statistics

import pytest
import torch

from minipaged.course import bench
from minipaged.course.bench import Case, Contender, Work, contenders, refuse_unlike, run_case
from minipaged.given.model import ModelConfig

CONFIG = ModelConfig(
    num_layers=1,
    num_query_heads=6,
    num_kv_heads=2,
    head_dim=8,
    hidden_size=48,
    vocab_size=2,
    max_seq_len=64,
)


def test_all_contenders_agree_and_are_timed_in_turns() -> None:
    turns = []

    def clock(work) -> float:
        work()
        turns.append(work)
        return 1.0 + len(turns) % 2

    rows = run_case(contenders(Case.make(CONFIG, 3, 10, block_size=4)), repeats=4, clock=clock)
    assert len(rows) >= 3
    pairs = [attend for row in rows for attend in (rows[0].contender.attend, row.contender.attend)]
    assert turns == pairs * 4
    assert all(len(row.seconds) == len(row.before) == 4 for row in rows)


def test_a_ratio_is_the_median_over_the_turns() -> None:
    case = Case.make(CONFIG, 1, 4, block_size=4)
    row = bench.Row(case.contender("x", lambda: case.q), [2.0, 3.0, 100.0], [1.0, 2.0, 100.0])
    assert row.ratio[0] == statistics.median([2.0, 1.5, 1.0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": torch.bfloat16}, "dtype torch.bfloat16"),
        ({"softmax_scale": 1.0}, "softmax_scale 1.0"),
        ({"lengths": (4, 4)}, r"lengths \(4, 4\)"),
        ({"mask": "none"}, "mask none"),
    ],
)
def test_unlike_work_is_refused_by_name(change, says) -> None:
    case = Case.make(CONFIG, 1, 4, block_size=4)
    work = {name: getattr(case.work, name) for name in Work.__dataclass_fields__} | change
    other = Contender("other", lambda: case.q, Work(**work), 1)
    with pytest.raises(ValueError, match=f"'other' has {says}"):
        refuse_unlike([case.contender("first", lambda: case.q), other])


def test_another_result_or_dtype_is_refused_by_name() -> None:
    case = Case.make(CONFIG, 1, 4, block_size=4)
    first = case.contender("first", lambda: case.q)
    with pytest.raises(ValueError, match="'wrong' is off by"):
        refuse_unlike([first, case.contender("wrong", lambda: case.q + 1)])
    with pytest.raises(ValueError, match=r"'half' gives torch\.float16"):
        refuse_unlike([first, case.contender("half", lambda: case.q.half())])


def test_every_contender_says_the_room_it_was_given() -> None:
    case = Case.make(CONFIG, 3, 10, block_size=4)
    rooms = {contender.name: contender.capacity for contender in contenders(case)}
    per_token = 2 * 2 * 8 * 4
    assert case.num_bytes == 30 * per_token
    assert rooms["contiguous, scaled_dot_product_attention"] == 30 * per_token
    assert rooms["paged_attention"] == 3 * 3 * 4 * per_token  # three blocks each


def test_the_command_prints_a_ratio_for_each_contender(capsys) -> None:
    arguments = "--device cpu --batch 2 --lengths 9,16 --block-size 4 --repeats 2 --heads 6,2,8"
    threads = torch.get_num_threads()
    bench.main(arguments.split())
    torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert out.count("paged_attention") == 2 and "a copy moves" in out


def test_one_turn_is_refused() -> None:
    case = Case.make(CONFIG, 1, 4, block_size=4)
    with pytest.raises(ValueError, match="repeats must be at least 2"):
        run_case(contenders(case), repeats=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_kernels_agree_on_a_gpu() -> None:
    case = Case.make(CONFIG, 3, 70, block_size=16, dtype=torch.bfloat16, device="cuda")
    refuse_unlike(contenders(case))
