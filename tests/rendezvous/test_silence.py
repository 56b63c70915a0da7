from __future__ import annotations

import pytest

from platform_launch.rendezvous.run.silence import (
    SilenceNews,
    SilenceReporter,
    in_view_of,
    is_closed,
    is_lost,
)


@pytest.mark.parametrize(
    ("silent_s", "still_s", "lost"),
    [
        (3600.0, 5.0, False),  # the training goes on without the rendezvous
        (59.0, 600.0, False),  # a training that hangs is not the rendezvous's business
        (60.0, 59.0, False),
        (60.0, 60.0, True),
        (59.0, None, False),
        (60.0, None, True),  # nobody can tell whether it goes on
    ],
)
def test_silence_ends_a_run_only_without_progress(
    silent_s: float, still_s: float | None, *, lost: bool
) -> None:
    assert is_lost(silent_s, still_s, 60.0) is lost


@pytest.mark.parametrize(
    ("closed_s", "still_s", "ended_s", "gone"),
    [
        (3600.0, 1.0, 0.0, False),  # the network closes connections, and the training goes on
        (1.0, 600.0, 1.0, False),  # it may be about to resume
        (2.0, 5.0, 0.0, True),
        (2.0, None, 2.0, True),
        (59.0, 1.0, 59.0, False),
        (60.0, 1.0, 60.0, True),  # the launcher ended, and the ranks elsewhere do not notice
    ],
)
def test_closed_connection_ends_a_run_without_progress_or_after_the_limit(
    closed_s: float, still_s: float | None, ended_s: float, *, gone: bool
) -> None:
    assert is_closed(closed_s, still_s, ended_s, 60.0) is gone


def test_silence_is_reported_when_it_doubles_and_when_it_ends() -> None:
    told = SilenceReporter(12.0)
    news = [(second, told.news(float(second))) for second in (*range(1, 60), 0, 1, *range(1, 14))]
    assert [(second, what) for second, what in news if what] == [
        (12, SilenceNews.SILENT),
        (24, SilenceNews.SILENT),
        (48, SilenceNews.SILENT),
        (0, SilenceNews.RESPONDS_AGAIN),
        (12, SilenceNews.SILENT),
    ]


def test_consequence_of_a_silence_is_reported() -> None:
    assert in_view_of(3.0, 60.0) == "the job continues"
    assert "no progress for 40 s; all nodes stop after 60 s of silence" in in_view_of(40.0, 60.0)
    assert "all nodes stop after 60 s" in in_view_of(None, 60.0)
