"""The pages and their fragments: HTML from the same queries that the API answers from.

Pages look; what they change goes to the JSON API, which checks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from platform_launch.errors import shown
from platform_launch.procguard.api.refused import NotFound, RequestRefused, Unavailable
from platform_launch.procguard.api.shapes.events import EventFilter
from platform_launch.procguard.core.queries import Queries
from platform_launch.procguard.web import listing
from platform_launch.procguard.web.compare import differences
from platform_launch.procguard.web.page_request import FOLDER, PageRequest, own_path, templates, to_login
from platform_launch.procguard.web.page_response import PageRenderer
from platform_launch.procguard.web.preview import preview
from platform_launch.procguard.web.stream import Stream
from platform_launch.procguard.web.visitor import FindVisitor

CARDS_SHOWN = 12
"""More groups than these are rows of a table."""
EVENTS_SHOWN = 100
RUNS_SHOWN = 50
WAITING_SHOWN = 64
_MAX_FORM = 64 * 1024


class _Files(StaticFiles):
    """The page's own files. Their addresses change with their content: a browser may keep them."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file."""
        answer = super().file_response(*args, **options)
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


def add_pages(app: FastAPI, queries: Queries, accounts: Accounts, *, visitor: FindVisitor) -> None:
    """Put the web page on the server's application, which sets its headers.

    ``app.state.missing_page`` is what a browser gets for an address that is none.
    """
    app.mount("/static", _Files(directory=FOLDER / "static"), name="static")
    pages = Pages(queries, accounts, visitor)
    for path, show in {
        "/": pages.overview,
        "/groups/{name}": pages.group,
        "/groups/{name}/settings": pages.group_settings,
        "/groups/{name}/runs": pages.group_runs,
        "/groups/{name}/runs/{number}": pages.group_run,
        "/groups/{name}/compare": pages.group_compare,
        "/groups/{name}/charts": pages.group_charts,
        "/groups/{name}/log": pages.group_log,
        "/groups/{name}/events": pages.group_events,
        "/workers/{worker}/log": pages.log,
        "/nodes": pages.nodes,
        "/nodes/{node}": pages.node,
        "/fragments/nodes": pages.node_rows,
        "/fragments/nodes/{node}": pages.node_state,
        "/events": pages.events,
        "/users": pages.users,
        "/account": pages.account,
        "/fragments/totals": pages.totals,
        "/fragments/groups": pages.group_cards,
        "/fragments/workers": pages.worker_rows,
        "/fragments/names": pages.names,
        "/fragments/move": pages.move,
        "/fragments/groups/{name}": pages.group_state,
        "/fragments/groups/{name}/runs": pages.run_rows,
        "/fragments/workers/{worker}": pages.worker_state,
        "/fragments/events": pages.event_rows,
    }.items():
        app.add_route(path, pages.guarded(show), methods=["GET"], include_in_schema=False)
    app.state.missing_page = pages.guarded(pages.missing)
    app.add_route("/login", pages.login, methods=["GET"], include_in_schema=False)
    app.add_route("/stream", pages.stream, methods=["GET"], include_in_schema=False)
    app.add_route("/fragments/groups/{name}/ranks", pages.ranks, methods=["POST"], include_in_schema=False)


class Accounts(Protocol):
    """Who may log in."""

    def all(self) -> Sequence[object]:
        """Return all users by name."""

    def tokens(self, name: str) -> Sequence[object]:
        """Return a user's tokens."""


Found = TypeVar("Found")
Show = Callable[[PageRequest], Response]


class Pages:
    """What is seen at each address."""

    def __init__(self, queries: Queries, accounts: Accounts, visitor: FindVisitor) -> None:
        self._queries = queries
        self._accounts = accounts
        self._visitor = visitor
        self._now = listing.SharedOverview(queries)
        self._renderer = PageRenderer(templates())

    def guarded(self, show: Show) -> Callable[[Request], Response]:
        """Let only those see it who are logged in; what is refused is a page as well."""

        def answer(request: Request) -> Response:
            visitor = self._visitor(request)
            if visitor is None:
                return to_login(request)
            page = PageRequest(self._renderer, request, visitor)
            try:
                return show(page)
            except RequestRefused as refused:
                status = refused.status
                return page.show("refused.html", status, status=status, refusal=refused.refusal, here="")

        return answer

    def missing(self, page: PageRequest) -> Response:
        """There is no such page."""
        raise NotFound(f"no page {shown(page.request.url.path)}", "begin at the overview")

    def login(self, request: Request) -> Response:
        """Who are you?"""
        page = PageRequest(self._renderer, request, None)
        return page.show("login.html", next=own_path(page.query.get("next", "/")))

    async def stream(self, request: Request) -> Response:
        """Tell the page when to look again."""

        async def admitted() -> bool:
            try:
                return await run_in_threadpool(self._visitor, request) is not None
            except Unavailable:  # the database: nobody can be asked now
                return True

        if await run_in_threadpool(self._visitor, request) is None:
            return Response(status_code=401)
        return Stream(self._queries, admitted)

    def overview(self, page: PageRequest) -> Response:
        """All groups and all workers."""
        return page.show(
            "overview.html", here="overview", **self._totals(), **self._cards(), **self._rows(page)
        )

    def totals(self, page: PageRequest) -> Response:
        """The whole cluster in a few numbers."""
        return page.show("totals.html", **self._totals())

    def _totals(self) -> dict[str, Any]:
        now = self._now.read()
        phases = Counter(group.phase.value for group in now.groups)
        ordered = [(phase, phases[phase]) for phase in listing.PHASES if phases[phase]]
        return {"totals": now.totals, "phases": ordered}

    def group_cards(self, page: PageRequest) -> Response:
        """The groups of the overview."""
        return page.show("groups.html", **self._cards())

    def worker_rows(self, page: PageRequest) -> Response:
        """A page of the table of workers. The filter stays in the address, for reloading and sharing."""
        rows = self._rows(page)
        answer = page.show("workers.html", **rows)
        return answer if rows["in_group"] else _in_address(page, answer, "/", "group")

    def names(self, page: PageRequest) -> Response:
        """The names of all workers that match the filter, for ticking them."""
        matching = listing.WorkerFilter.read(page.query).matching(self._now.read().workers)
        return JSONResponse([worker.worker for worker in matching])

    def move(self, page: PageRequest) -> Response:
        """The groups that workers can be moved to."""
        return page.show("move.html", groups=self._now.read().groups, active=_active())

    def group(self, page: PageRequest) -> Response:
        """A group's workers."""
        name = page.request.path_params["name"]
        chosen = {**page.query, "group": name, "in_group": "1"}
        return page.show("group.html", tab="workers", **self._group(name), **self._rows(page, chosen))

    def group_settings(self, page: PageRequest) -> Response:
        """A group's settings and the ranks they give."""
        name = page.request.path_params["name"]
        state = self._group(name)
        ranks = preview(self._queries, name, None)
        return page.show("group_settings.html", tab="settings", **state, **ranks)

    def group_runs(self, page: PageRequest) -> Response:
        """A group's history."""
        state = self._group(page.request.path_params["name"])
        return page.show("group_runs.html", tab="runs", **state, **self._runs(page))

    def run_rows(self, page: PageRequest) -> Response:
        """The rows of a group's history."""
        group = self._queries.group(page.request.path_params["name"])
        return page.show("run_rows.html", group=group, **self._runs(page))

    def group_run(self, page: PageRequest) -> Response:
        """One run of a group."""
        name, text = page.request.path_params["name"], page.request.path_params["number"]
        if not _is_number(text):
            raise NotFound(f"no run {shown(text)}", "look at the list of runs")
        number = int(text)
        return page.show(
            "group_run.html", tab="runs", run=self._queries.run(name, number), **self._group(name)
        )

    def group_compare(self, page: PageRequest) -> Response:
        """Two runs of a group beside each other; without two numbers, the newest and the one before."""
        name = page.request.path_params["name"]
        picked = [int(text) for text in page.request.query_params.getlist("run") if _is_number(text)]
        known = [run.number for run in self._queries.runs(name, limit=2)]
        chosen = list(dict.fromkeys([*picked[:2], *known]))[:2]
        numbers = sorted(chosen)
        if len(numbers) < 2:
            raise NotFound("two runs are compared", "choose two in the list of runs")
        one, other = (self._queries.run(name, number) for number in numbers[:2])
        return page.show(
            "group_compare.html",
            tab="runs",
            one=one,
            other=other,
            differences=differences(one, other),
            **self._group(name),
        )

    def group_charts(self, page: PageRequest) -> Response:
        """How busy a group was."""
        return page.show("group_charts.html", tab="charts", **self._group(page.request.path_params["name"]))

    def group_log(self, page: PageRequest) -> Response:
        """The logs of all ranks of a run; they are read from the API."""
        name = page.request.path_params["name"]
        runs = self._queries.runs(name, limit=RUNS_SHOWN)
        wanted = page.query.get("run", "")
        number = int(wanted) if _is_number(wanted) else (runs[0].number if runs else 0)
        run = next((one for one in runs if one.number == number), None)
        rank = None
        if run is not None and run.failure is not None and run.failure.line is not None:
            places = self._queries.run(name, number).places
            rank = next((one.rank for one in places if one.worker == run.failure.worker), None)
        return page.show(
            "group_log.html",
            tab="log",
            runs=runs,
            number=number,
            run=run,
            cause_rank=rank,
            **self._group(name),
        )

    def group_events(self, page: PageRequest) -> Response:
        """What happened to a group."""
        name = page.request.path_params["name"]
        chosen = EventFilter(on=name)
        return page.show("group_events.html", tab="events", **self._group(name), **self._events(page, chosen))

    def group_state(self, page: PageRequest) -> Response:
        """The part of a group's page that changes by itself."""
        return page.show("group_state.html", **self._state_of(page.request.path_params["name"]))

    async def ranks(self, request: Request) -> Response:
        """The rank table for settings that are not saved yet."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM:
                return Response(status_code=413)
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        name = request.path_params["name"]
        show = self.guarded(lambda page: page.show("ranks.html", **preview(self._queries, name, form)))
        return await run_in_threadpool(show, request)

    def nodes(self, page: PageRequest) -> Response:
        """All nodes, a row each."""
        return page.show("nodes.html", here="nodes", **self._node_rows(page))

    def node_rows(self, page: PageRequest) -> Response:
        """A page of the table of nodes; its filter stays in the address as well."""
        answer = page.show("node_rows.html", **self._node_rows(page))
        return _in_address(page, answer, "/nodes", "sort")

    def node(self, page: PageRequest) -> Response:
        """A node, its workers and what happened to it."""
        return page.show("node.html", here="nodes", **self._node(page))

    def node_state(self, page: PageRequest) -> Response:
        """The part of a node's page that changes by itself."""
        return page.show("node_state.html", **self._node(page))

    def _node_rows(self, page: PageRequest) -> dict[str, Any]:
        nodes = self._now.read().nodes
        chosen = listing.NodeFilter.read(page.query)
        glances = listing.paged(chosen.matching(nodes), page.query.get("page", "1"))
        rows = _present(self._queries.node, [glance.node for glance in glances.rows])
        return {
            "page": listing.ListPage(rows, glances.number, glances.pages, glances.total),
            "filter": chosen,
            "any_nodes": bool(nodes),
            "states": listing.NODE_STATES,
            "address": str(page.request.base_url).rstrip("/"),
        }

    def _node(self, page: PageRequest) -> dict[str, Any]:
        node = self._queries.node(page.request.path_params["node"])
        return {
            "node": node,
            "workers": _present(self._queries.worker, node.workers),
            **self._events(page, EventFilter(on=node.node)),
        }

    def log(self, page: PageRequest) -> Response:
        """A worker and its log; the log itself is read from the API."""
        generation = page.query.get("generation", "")
        shown_generation = generation if generation.isdecimal() else ""
        return page.show("log.html", here="", generation=shown_generation, **self._worker(page))

    def worker_state(self, page: PageRequest) -> Response:
        """A worker as it is now."""
        return page.show("worker_state.html", **self._worker(page))

    def _worker(self, page: PageRequest) -> dict[str, Any]:
        worker = self._queries.worker(page.request.path_params["worker"])
        group = self._queries.group(worker.group) if worker.group else None
        current, previous = (group.failure, group.previous_failure) if group else (None, None)
        if current and current.worker == worker.worker:
            return {"worker": worker, "why": current, "title": ""}
        if previous and previous.worker == worker.worker:
            title = page.words("failure.before", n=previous.run_number)
            return {"worker": worker, "why": previous, "title": title}
        return {"worker": worker, "why": None, "title": ""}

    def users(self, page: PageRequest) -> Response:
        """Who may log in."""
        if page.visitor is None or not page.visitor.admin:
            raise NotFound("no page of users", "an admin sees it")
        return page.show("users.html", here="users", users=self._accounts.all())

    def account(self, page: PageRequest) -> Response:
        """One's own password and tokens."""
        name = page.visitor.name if page.visitor else ""
        return page.show("account.html", here="account", tokens=self._accounts.tokens(name))

    def events(self, page: PageRequest) -> Response:
        """The audit log."""
        return page.show("events.html", here="events", **self._events(page, _chosen(page)))

    def event_rows(self, page: PageRequest) -> Response:
        """The newest entries of the audit log."""
        return page.show("event_rows.html", **self._events(page, _chosen(page)))

    def _cards(self) -> dict[str, Any]:
        now = self._now.read()
        return {
            "groups": listing.failed_first(now.groups),
            "compact": len(now.groups) > CARDS_SHOWN,
            "group_names": [group.name for group in now.groups],
            "counts": now.counts,
            "active": _active(),
        }

    def _rows(self, page: PageRequest, query: dict[str, str] | None = None) -> dict[str, Any]:
        query = page.query if query is None else query
        workers = self._now.read().workers
        chosen = listing.WorkerFilter.read(query)
        in_group = "in_group" in query
        matching = chosen.matching(workers)
        glances = listing.paged(listing.by_rank(matching) if in_group else matching, query.get("page", "1"))
        rows = _present(self._queries.worker, [glance.worker for glance in glances.rows])
        return {
            "page": listing.ListPage(rows, glances.number, glances.pages, glances.total),
            "filter": chosen,
            "in_group": in_group,
            "any_workers": any(worker.group == chosen.group for worker in workers)
            if in_group
            else bool(workers),
            "states": listing.STATES,
            "address": str(page.request.base_url).rstrip("/"),
        }

    def _state_of(self, name: str) -> dict[str, Any]:
        group = self._queries.group(name)
        now = self._now.read()
        nodes = [node for node in now.nodes if any(worker.group == name for worker in node.workers)]
        waiting = _present(self._queries.worker, group.waiting_for[:WAITING_SHOWN])
        quarantined = {node.node: node.quarantine for node in nodes if node.quarantine}
        return {
            "group": group,
            "nodes": [node.node for node in nodes],
            "waiting": waiting,
            "quarantined": quarantined,
            "counts": now.counts,
            "active": _active(),
        }

    def _group(self, name: str) -> dict[str, Any]:
        return {"here": "", **self._state_of(name)}

    def _runs(self, page: PageRequest) -> dict[str, Any]:
        before = _before(page)
        runs = self._queries.runs(page.request.path_params["name"], before, RUNS_SHOWN + 1)
        return {"runs": runs[:RUNS_SHOWN], "more": len(runs) > RUNS_SHOWN, "before": before}

    def _events(self, page: PageRequest, chosen: EventFilter) -> dict[str, Any]:
        before = _before(page)
        events = self._queries.events(before, EVENTS_SHOWN + 1, chosen)
        return {
            "events": events[:EVENTS_SHOWN],
            "more": len(events) > EVENTS_SHOWN,
            "before": before,
            "chosen": chosen,
        }


def _present(find: Callable[[str], Found], names: Sequence[str]) -> list[Found]:
    found = []
    for name in names:
        with suppress(NotFound):  # the node was forgotten just now
            found.append(find(name))
    return found


def _in_address(page: PageRequest, answer: Response, path: str, key: str) -> Response:
    """Put what was chosen in a filter into the address of the page it is on: text, state, ``key``, page."""
    if page.request.headers.get("HX-Trigger") == "filter":
        kept = {name: page.query[name] for name in ("text", "state", key, "page") if page.query.get(name)}
        if kept.get("page") == "1":
            del kept["page"]
        answer.headers["HX-Replace-Url"] = f"{path}?{urlencode(kept)}" if kept else path
    return answer


def _active() -> frozenset[str]:
    return frozenset(phase.value for phase in listing.ACTIVE)


def _before(page: PageRequest) -> int | None:
    text = page.query.get("before", "")
    return int(text) if _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16


def _chosen(page: PageRequest) -> EventFilter:
    limits = {"on": 140, "who": 64, "action": 32}
    return EventFilter(**{name: page.query.get(name, "")[:most] for name, most in limits.items()})
