"""The pages and their fragments: HTML from the same queries as the API's answers.

Pages only read; changes go to the JSON API, which checks them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from platform_launch.procguard.api.refused import NotFound, RequestRefused, Unavailable
from platform_launch.procguard.api.shapes.groups import (
    GroupPhase,
    GroupSettings,
    GroupShape,
    RankPreview,
    RunDetail,
)
from platform_launch.procguard.api.shapes.history import EventFilter
from platform_launch.procguard.api.shapes.people import Person
from platform_launch.procguard.control.history import History
from platform_launch.procguard.control.queries import Queries, present
from platform_launch.procguard.core.registry import WorkerGlance
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.web import listing
from platform_launch.procguard.web.page_request import FOLDER, PageRequest, own_path, templates, to_login
from platform_launch.procguard.web.stream import Stream
from platform_launch.sentences import Sentence, sentence


def preview(queries: Queries, name: str, settings: bytes | None) -> dict[str, Any]:
    """Return the rank table of a group, with these settings (as JSON) instead of its own.

    ``invalid`` are the invalid fields: the field, a part of it (a variable's name), and whether ProcGuard
    sets it. There is no table then. Raises NotFound.
    """
    try:
        wanted = None if settings is None else GroupSettings.model_validate_json(settings)
    except ValidationError as error:
        return {"preview": RankPreview(), "invalid": [_invalid(trouble) for trouble in error.errors()[:5]]}
    return {"preview": queries.preview(name, wanted), "invalid": []}


def _invalid(trouble: Any) -> tuple[str, str, bool]:
    field, *part = (str(one) for one in trouble["loc"] if one != "[key]")
    return field, ": ".join(part), trouble["type"] == "set_by_procguard"


_LONGEST = 400


def differences(one: RunDetail, other: RunDetail) -> list[tuple[str, str, str]]:
    """Return the differences, each with the values of both runs as text."""
    left, right = _values(one), _values(other)
    names = [*left, *(name for name in right if name not in left)]
    return [
        (name, left.get(name, ""), right.get(name, ""))
        for name in names
        if left.get(name, "") != right.get(name, "")
    ]


def _values(run: RunDetail) -> dict[str, str]:
    values = {"command": shlex.join(run.command)}
    for name, value in run.settings.model_dump(mode="json").items():
        if isinstance(value, dict):
            values |= {f"{name} {key}": str(text) for key, text in value.items()}
        elif name != "command":
            values[name] = "" if value is None else str(value)
    names = " ".join(str(place.worker) for place in run.places)
    return values | {"workers": names if len(names) <= _LONGEST else f"{names[:_LONGEST]}…"}


CARDS_SHOWN = 12
"""More groups than these are shown as a table."""
EVENTS_SHOWN = 100
RUNS_SHOWN = 50
WAITING_SHOWN = 64

Values = dict[str, Any]
Show = Callable[[PageRequest], Response]
FindPerson = Callable[[Request], Person | None]
"""Returns the user of a request, None if nobody is logged in. May read the database: not for the event
loop.
"""


def add_pages(app: FastAPI, pages: Pages) -> None:
    """Add the web page to the server's application, which sets its headers.

    ``app.state.missing_page`` answers browsers that open an unknown address.
    """
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    shows: dict[str, Show] = {
        path: _from_template(template, values) for path, (template, values) in pages.templates().items()
    }
    shows |= {
        "/fragments/nodes": pages.node_rows,
        "/fragments/workers": pages.worker_rows,
        "/fragments/names": pages.names,
    }
    for path, show in shows.items():
        app.add_route(path, pages.guarded(show), methods=["GET"], include_in_schema=False)
    app.state.missing_page = pages.guarded(pages.missing)
    app.add_route("/login", pages.login, methods=["GET"], include_in_schema=False)
    app.add_route("/stream", pages.stream, methods=["GET"], include_in_schema=False)
    app.add_route("/fragments/groups/{name}/ranks", pages.ranks, methods=["POST"], include_in_schema=False)


def _from_template(template: str, values: Callable[[PageRequest], Values]) -> Show:
    return lambda page: page.show(template, **values(page))


class Pages:
    """The content of each address. ``{name}`` is the name of its group, worker or node.

    ``schemes`` are the allowed schemes of users' notice addresses. ``oidc``: the login page offers single
    sign-on.
    """

    def __init__(
        self,
        queries: Queries,
        accounts: Users,
        find_person: FindPerson,
        history: History,
        schemes: Sequence[str],
        *,
        oidc: bool,
    ) -> None:
        self._oidc = oidc
        self._queries = queries
        self._history = history
        self._schemes = schemes
        self._accounts = accounts
        self._find_person = find_person
        self._now = listing.SharedOverview(queries)
        templates()  # compiled now, not for the first reader

    def templates(self) -> Mapping[str, tuple[str, Callable[[PageRequest], Values]]]:
        """Return the template of each address, and the function that returns its values.

        A page includes its fragments: the page and what it fetches later use the same templates.
        """
        return {
            "/": ("overview.html", lambda page: self._totals() | self._cards(page) | self._rows(page.query)),
            "/fragments/totals": ("totals.html", lambda _: self._totals()),
            "/fragments/groups": ("groups.html", self._cards),
            "/fragments/move": ("move.html", lambda _: {"groups": self._now.read().groups}),
            "/groups/{name}": (
                "group.html",
                lambda page: (
                    self._group(page) | self._rows({**page.query, "group": page.name, "in_group": "1"})
                ),
            ),
            "/groups/{name}/settings": (
                "group_settings.html",
                lambda page: self._group(page) | preview(self._queries, page.name, None),
            ),
            "/groups/{name}/runs": ("group_runs.html", lambda page: self._group(page) | self._runs(page)),
            "/groups/{name}/runs/{number}": (
                "group_run.html",
                lambda page: self._group(page) | self._run(page),
            ),
            "/groups/{name}/compare": (
                "group_compare.html",
                lambda page: self._group(page) | self._compared(page),
            ),
            "/groups/{name}/charts": ("group_charts.html", self._group),
            "/groups/{name}/log": ("group_log.html", lambda page: self._group(page) | self._group_log(page)),
            "/groups/{name}/events": (
                "group_events.html",
                lambda page: self._group(page) | self._events(page, EventFilter(on=page.name)),
            ),
            "/fragments/groups/{name}": ("group_state.html", self._group),
            "/fragments/groups/{name}/runs": (
                "run_rows.html",
                lambda page: {"group": self._queries.group(page.name), **self._runs(page)},
            ),
            "/workers/{name}/log": (
                "log.html",
                lambda page: self._worker(page) | {"generation": page.number("generation")},
            ),
            "/fragments/workers/{name}": ("worker_state.html", self._worker),
            "/nodes": ("nodes.html", self._node_rows),
            "/nodes/{name}": ("node.html", self._node),
            "/fragments/nodes/{name}": ("node_state.html", self._node),
            "/events": ("events.html", lambda page: self._events(page, _chosen(page))),
            "/fragments/events": ("event_rows.html", lambda page: self._events(page, _chosen(page))),
            "/users": ("users.html", self._users),
            "/account": ("account.html", self._account),
        }

    def guarded(self, show: Show) -> Callable[[Request], Response]:
        """Show something only to users who are logged in; a refusal becomes a page as well."""

        def answer(request: Request) -> Response:
            page = PageRequest(request, None)
            try:
                page.person = self._find_person(request)
                return show(page) if page.person else to_login(request)
            except RequestRefused as refused:
                status = refused.status
                template = "refused.html" if page.person else "shut_out.html"
                return page.show(template, status, status=status, refusal=refused.refusal)

        return answer

    def missing(self, page: PageRequest) -> Response:
        """Report a missing page."""
        raise NotFound("no-page", path=page.request.url.path[:200])

    def login(self, request: Request) -> Response:
        """Show the login page."""
        page = PageRequest(request, None)
        place = own_path(page.query.get("next", "/"))
        problem = page.words.known(f"login.problem.{page.query.get('problem', '')}", "")
        return page.show(
            "login.html", next=place, ended="ended" in page.query, oidc=self._oidc, problem=problem
        )

    async def stream(self, request: Request) -> Response:
        """Stream events that make the page refresh itself."""

        async def admitted() -> bool:
            try:
                return await run_in_threadpool(self._find_person, request) is not None
            except Unavailable:  # the database cannot be read right now
                return True
            except RequestRefused:  # a proxy names somebody who may no longer log in
                return False

        if await run_in_threadpool(self._find_person, request) is None:
            return Response(status_code=401)
        return Stream(self._queries, admitted)

    def worker_rows(self, page: PageRequest) -> Response:
        """Show a page of the table of workers. The filter stays in the address, for reloading and sharing."""
        rows = self._rows(page.query)
        answer = page.show("workers.html", **rows)
        return answer if rows["in_group"] else _in_address(page, answer, "/", "group")

    def node_rows(self, page: PageRequest) -> Response:
        """Show a page of the table of nodes; its filter stays in the address as well."""
        return _in_address(page, page.show("node_rows.html", **self._node_rows(page)), "/nodes", "sort")

    def names(self, page: PageRequest) -> Response:
        """Return the names of all workers that match the filter, for selecting them."""
        matching = listing.WorkerFilter.read(page.query).matching(self._now.read().workers)
        return JSONResponse([worker.worker for worker in matching])

    async def ranks(self, request: Request) -> Response:
        """Show the rank table for settings that are not saved yet."""
        body = await request.body()

        def values(page: PageRequest) -> Values:
            operator = page.person is not None and page.person.operator  # others cannot fill in the form
            return preview(self._queries, page.name, body if operator else None)

        return await run_in_threadpool(self.guarded(_from_template("ranks.html", values)), request)

    def _totals(self) -> Values:
        now = self._now.read()
        phases = Counter(group.phase.value for group in now.groups)
        ordered = [(phase, phases[phase]) for phase in listing.PHASES if phases[phase]]
        return {"totals": now.totals, "phases": ordered}

    def _cards(self, page: PageRequest) -> Values:
        now, mine, name = self._now.read(), "mine" in page.query, page.person.name if page.person else ""
        shown = [
            group
            for group in now.groups
            if not mine or name == group.requested_by or name in group.settings.owners
        ]
        return {
            "groups": listing.failed_first(shown),
            "mine": mine,
            "use": self._use(shown),
            "compact": len(shown) > CARDS_SHOWN,
            "group_names": [group.name for group in now.groups],
            "counts": now.counts,
        }

    def _rows(self, query: Mapping[str, str]) -> Values:
        workers = self._now.read().workers
        chosen = listing.WorkerFilter.read(query)
        in_group = "in_group" in query
        matching = chosen.matching(workers)
        found = listing.paged(listing.by_rank(matching) if in_group else matching, query.get("page", "1"))
        return {
            "page": found.of(present(self._queries.worker, [glance.worker for glance in found.rows])),
            "filter": chosen,
            "in_group": in_group,
            "any_workers": any(not in_group or worker.group == chosen.group for worker in workers),
            "states": listing.STATES,
        }

    def _group(self, page: PageRequest) -> Values:
        """Return a group, which is shown above each of its pages."""
        group, now = self._queries.group(page.name), self._now.read()
        nodes = [node for node in now.nodes if any(worker.group == group.name for worker in node.workers)]
        return {
            "group": group,
            "nodes": [node.node for node in nodes],
            "waiting": present(self._queries.worker, group.waiting_for[:WAITING_SHOWN]),
            "quarantined": {node.node: node.entry.quarantine for node in nodes if node.entry.quarantine},
            "counts": now.counts,
            "use": self._use([group]),
            "slow": _slow_ranks(now.workers, group),
        }

    def _use(self, groups: Sequence[GroupShape]) -> dict[str, Values]:
        """Return the GPU use of each group, and processes of other users on its GPUs."""
        use, others = self._history.gpu_use(), self._now.read().gpu_processes
        return {
            group.name: {
                "now": use.get(group.name),
                "run": self._history.run_use(group.name, group.run_number),
                "others": others.get(group.name, ()),
            }
            for group in groups
        }

    def _runs(self, page: PageRequest) -> Values:
        before, cause = page.number("before"), page.query.get("cause", "").strip()[:200]
        runs = self._queries.runs(page.name, before, RUNS_SHOWN + 1, cause)
        return {
            "runs": runs[:RUNS_SHOWN],
            "more": len(runs) > RUNS_SHOWN,
            "before": before,
            "cause": cause,
        }

    def _run(self, page: PageRequest) -> Values:
        text = page.request.path_params["number"]
        if (number := page.as_number(text)) is None:
            raise NotFound("no-run", number=text[:80], group=page.name)
        return {"run": self._queries.run(page.name, number)}

    def _compared(self, page: PageRequest) -> Values:
        """Return two runs of a group; without two numbers, the newest and the one before."""
        texts = page.request.query_params.getlist("run")
        picked = [number for text in texts if (number := page.as_number(text)) is not None]
        known = [run.number for run in self._queries.runs(page.name, limit=2)]
        numbers = sorted(list(dict.fromkeys([*picked[:2], *known]))[:2])
        if len(numbers) < 2:
            raise NotFound("nothing-to-compare")
        one, other = (self._queries.run(page.name, number) for number in numbers)
        return {"one": one, "other": other, "differences": differences(one, other)}

    def _group_log(self, page: PageRequest) -> Values:
        """Return the runs with logs, and the location of the root cause; the API returns the lines."""
        runs = self._queries.runs(page.name, limit=RUNS_SHOWN)
        number = page.number("run")
        if number is None:
            number = runs[0].number if runs else 0
        run = next((one for one in runs if one.number == number), None)
        rank = None
        if run is not None and run.failure is not None and run.failure.line is not None:
            places = self._queries.run(page.name, number).places
            rank = next((one.rank for one in places if str(one.worker) == run.failure.worker), None)
        return {"runs": runs, "number": number, "run": run, "cause_rank": rank}

    def _node_rows(self, page: PageRequest) -> Values:
        nodes = self._now.read().nodes
        chosen = listing.NodeFilter.read(page.query)
        found = listing.paged(chosen.matching(nodes), page.query.get("page", "1"))
        return {
            "page": found.of(present(self._queries.node, [glance.node for glance in found.rows])),
            "filter": chosen,
            "any_nodes": bool(nodes),
            "states": listing.NODE_STATES,
        }

    def _node(self, page: PageRequest) -> Values:
        node = self._queries.node(page.name)
        workers = present(self._queries.worker, node.workers)
        return {"node": node, "workers": workers, **self._events(page, EventFilter(on=node.node))}

    def _worker(self, page: PageRequest) -> Values:
        """Return a worker, and why its group failed if it was the first that failed."""
        worker = self._queries.worker(page.name)
        group = self._queries.group(worker.group) if worker.group else None
        current, previous = (group.failure, group.previous_failure) if group else (None, None)
        if current and current.worker == worker.worker:
            return {"worker": worker, "why": current, "title": ""}
        if previous and previous.worker == worker.worker:
            title = page.words("failure.before", n=previous.run_number)
            return {"worker": worker, "why": previous, "title": title}
        return {"worker": worker, "why": None, "title": ""}

    def _users(self, page: PageRequest) -> Values:
        if page.person is None or not page.person.admin:
            raise NotFound("no-page", path="/users")
        return {"users": self._accounts.all()}

    def _account(self, page: PageRequest) -> Values:
        name = page.person.name if page.person else ""
        account = self._accounts.find(name)
        return {
            "tokens": self._accounts.tokens(name),
            "schemes": self._schemes,
            "address_of_notices": account.address if account else "",
        }

    def _events(self, page: PageRequest, chosen: EventFilter) -> Values:
        before = page.number("before")
        events = self._queries.events(before, EVENTS_SHOWN + 1, chosen)
        return {
            "events": events[:EVENTS_SHOWN],
            "more": len(events) > EVENTS_SHOWN,
            "before": before,
            "chosen": chosen,
        }


def _slow_ranks(workers: Sequence[WorkerGlance], group: GroupShape) -> Sequence[Sentence]:
    """Return the slow ranks, as reported by the launcher of rank 0: all launchers of a job report the
    same.
    """
    first = next((one for one in workers if one.group == group.name and one.rank == 0), None)
    running = group.phase in (GroupPhase.RUNNING, GroupPhase.DEGRADED)
    slow = first.report.slow_ranks if running and first and first.report else ()
    return [sentence("slow-now", what=one) for one in slow]


def _in_address(page: PageRequest, answer: Response, path: str, key: str) -> Response:
    """Put the filter into the address of its page: text, state, ``key`` and page."""
    if page.request.headers.get("HX-Trigger") == "filter":
        kept = {name: page.query[name] for name in ("text", "state", key, "page") if page.query.get(name)}
        if kept.get("page") == "1":
            del kept["page"]
        answer.headers["HX-Replace-Url"] = f"{path}?{urlencode(kept)}" if kept else path
    return answer


def _chosen(page: PageRequest) -> EventFilter:
    limits = {"on": 140, "who": 64, "action": 32}
    return EventFilter(**{name: page.query.get(name, "")[:most] for name, most in limits.items()})
