"""What all tests share: one thread, no learner's package, and how much is tried."""

import os

import pytest
import torch
from hypothesis import settings

os.environ["MINIPAGED_MINE"] = "off"
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

settings.register_profile("usual", deadline=None)
settings.register_profile("all", deadline=None, max_examples=1000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="leave nothing out: more draws and seeds")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "usual")


@pytest.fixture(scope="session")
def seeds(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Seeds of the checks' draws; judging runs several from each on."""
    return (0, 1000, 2000, 3000, 4000) if request.config.getoption("--all") else (0,)
