"""The pages and their fragments: HTML from the same queries that the API answers from.

Pages look; what they change goes to the JSON API, which checks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupShape
from platform_launch.procguard.api.shapes.people import Person
from platform_launch.procguard.core.queries import Queries
from platform_launch.procguard.core.registry import WorkerGlance
from platform_launch.procguard.web import listing
from platform_launch.procguard.web.compare import differences
from platform_launch.procguard.web.page_request import FOLDER, PageRequest, own_path, templates, to_login
from platform_launch.procguard.web.preview import preview
from platform_launch.procguard.web.stream import Stream
from platform_launch.sentences import Sentence, sentence

CARDS_SHOWN = 12
"""More groups than these are rows of a table."""
EVENTS_SHOWN = 100
RUNS_SHOWN = 50
WAITING_SHOWN = 64
_MAX_FORM = 64 * 1024

Found = TypeVar("Found")
Values = dict[str, Any]
Show = Callable[[PageRequest], Response]
FindPerson = Callable[[Request], Person | None]
"""Who sent a request, None where nobody is logged in. May read the database: not for the event loop."""


class Accounts(Protocol):
    """Who may log in."""

    def all(self) -> Sequence[object]:
        """Return all users by name."""

    def find(self, name: str) -> Account | None:
        """Return a user, None if there is none of that name."""

    def tokens(self, name: str) -> Sequence[object]:
        """Return a user's tokens."""


class Account(Protocol):
    """A user."""

    @property
    def address(self) -> str:
        """Where notices go."""


class GroupUse(Protocol):
    """How busy groups keep their GPUs, in percent."""

    def gpu_use(self) -> Mapping[str, float | None]:
        """Return the use of each group now."""

    def run_use(self, group: str, run: int) -> float | None:
        """Return the mean over a run."""


def add_pages(
    app: FastAPI,
    queries: Queries,
    accounts: Accounts,
    find_person: FindPerson,
    gpu_use: GroupUse,
    schemes: Sequence[str],
    *,
    oidc: bool = False,
) -> None:
    """Put the web page on the server's application, which sets its headers.

    ``schemes`` are those of the addresses that people's notices may go to. ``oidc``: the login page offers
    single sign-on.
    ``app.state.missing_page`` is what a browser gets for an address that is none.
    """
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    pages = Pages(queries, accounts, find_person, gpu_use, schemes, oidc=oidc)
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
    """What is seen at each address. ``{name}`` in one is the group's, worker's or node's that it is about."""

    def __init__(
        self,
        queries: Queries,
        accounts: Accounts,
        find_person: FindPerson,
        gpu_use: GroupUse,
        schemes: Sequence[str],
        *,
        oidc: bool = False,
    ) -> None:
        self._oidc = oidc
        self._queries = queries
        self._gpu_use = gpu_use
        self._schemes = schemes
        self._accounts = accounts
        self._find_person = find_person
        self._now = listing.SharedOverview(queries)
        templates()  # compiled now, not while the first reader waits

    def templates(self) -> Mapping[str, tuple[str, Callable[[PageRequest], Values]]]:
        """Return the template of each address, and what gives its values.

        A page includes its fragments: what it shows by itself and what it fetches later are one template.
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
        """Let only those see it who are logged in; what is refused is a page as well."""

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
        """There is no such page."""
        raise NotFound(f"no page {shown(page.request.url.path)}", "begin at the overview")

    def login(self, request: Request) -> Response:
        """Who are you?"""
        page = PageRequest(request, None)
        place = own_path(page.query.get("next", "/"))
        problem = page.words.known(f"login.problem.{page.query.get('problem', '')}", "")
        return page.show(
            "login.html", next=place, ended="ended" in page.query, oidc=self._oidc, problem=problem
        )

    async def stream(self, request: Request) -> Response:
        """Tell the page when to look again."""

        async def admitted() -> bool:
            try:
                return await run_in_threadpool(self._find_person, request) is not None
            except Unavailable:  # the database: nobody can be asked now
                return True
            except RequestRefused:  # a proxy names somebody who may not log in any more
                return False

        if await run_in_threadpool(self._find_person, request) is None:
            return Response(status_code=401)
        return Stream(self._queries, admitted)

    def worker_rows(self, page: PageRequest) -> Response:
        """A page of the table of workers. The filter stays in the address, for reloading and sharing."""
        rows = self._rows(page.query)
        answer = page.show("workers.html", **rows)
        return answer if rows["in_group"] else _in_address(page, answer, "/", "group")

    def node_rows(self, page: PageRequest) -> Response:
        """A page of the table of nodes; its filter stays in the address as well."""
        return _in_address(page, page.show("node_rows.html", **self._node_rows(page)), "/nodes", "sort")

    def names(self, page: PageRequest) -> Response:
        """The names of all workers that match the filter, for ticking them."""
        matching = listing.WorkerFilter.read(page.query).matching(self._now.read().workers)
        return JSONResponse([worker.worker for worker in matching])

    async def ranks(self, request: Request) -> Response:
        """The rank table for settings that are not saved yet."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM:
                return Response(status_code=413)
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        show = _from_template("ranks.html", lambda page: preview(self._queries, page.name, form))
        return await run_in_threadpool(self.guarded(show), request)

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
            "page": found.of(_present(self._queries.worker, [glance.worker for glance in found.rows])),
            "filter": chosen,
            "in_group": in_group,
            "any_workers": any(not in_group or worker.group == chosen.group for worker in workers),
            "states": listing.STATES,
        }

    def _group(self, page: PageRequest) -> Values:
        """A group as it is now, which is above each of its pages."""
        group, now = self._queries.group(page.name), self._now.read()
        nodes = [node for node in now.nodes if any(worker.group == group.name for worker in node.workers)]
        return {
            "group": group,
            "nodes": [node.node for node in nodes],
            "waiting": _present(self._queries.worker, group.waiting_for[:WAITING_SHOWN]),
            "quarantined": {node.node: node.entry.quarantine for node in nodes if node.entry.quarantine},
            "counts": now.counts,
            "use": self._use([group]),
            "slow": _slow_ranks(now.workers, group),
        }

    def _use(self, groups: Sequence[GroupShape]) -> dict[str, Values]:
        """Return how busy the GPUs of each group are, and who else is on them."""
        use, others = self._gpu_use.gpu_use(), self._now.read().gpu_processes
        return {
            group.name: {
                "now": use.get(group.name),
                "run": self._gpu_use.run_use(group.name, group.run_number),
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
            raise NotFound(f"no run {shown(text)}", "look at the list of runs")
        return {"run": self._queries.run(page.name, number)}

    def _compared(self, page: PageRequest) -> Values:
        """Two runs of a group beside each other; without two numbers, the newest and the one before."""
        texts = page.request.query_params.getlist("run")
        picked = [number for text in texts if (number := page.as_number(text)) is not None]
        known = [run.number for run in self._queries.runs(page.name, limit=2)]
        numbers = sorted(list(dict.fromkeys([*picked[:2], *known]))[:2])
        if len(numbers) < 2:
            raise NotFound("two runs are compared", "choose two in the list of runs")
        one, other = (self._queries.run(page.name, number) for number in numbers)
        return {"one": one, "other": other, "differences": differences(one, other)}

    def _group_log(self, page: PageRequest) -> Values:
        """The runs whose logs can be read, and where the cause stands; the lines are read from the API."""
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
            "page": found.of(_present(self._queries.node, [glance.node for glance in found.rows])),
            "filter": chosen,
            "any_nodes": bool(nodes),
            "states": listing.NODE_STATES,
        }

    def _node(self, page: PageRequest) -> Values:
        node = self._queries.node(page.name)
        workers = _present(self._queries.worker, node.workers)
        return {"node": node, "workers": workers, **self._events(page, EventFilter(on=node.node))}

    def _worker(self, page: PageRequest) -> Values:
        """A worker as it is now, with why its group failed where it was the first that did."""
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
            raise NotFound("no page of users", "an admin sees it")
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
    """Return which ranks are slow, by the launcher of rank 0: all launchers of a job say the same."""
    first = next((one for one in workers if one.group == group.name and one.rank == 0), None)
    running = group.phase in (GroupPhase.RUNNING, GroupPhase.DEGRADED)
    slow = first.report.slow_ranks if running and first and first.report else ()
    return [sentence("slow-now", what=one) for one in slow]


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


def _chosen(page: PageRequest) -> EventFilter:
    limits = {"on": 140, "who": 64, "action": 32}
    return EventFilter(**{name: page.query.get(name, "")[:most] for name, most in limits.items()})
