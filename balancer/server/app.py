"""One balancer process: wires the parts together, and gives the router its clock."""

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from balancer.config.config import Config
from balancer.config.learning import learning_file
from balancer.config.overrides import Overrides
from balancer.config.watch import ConfigState, watch
from balancer.discovery.workers import WorkerSpec, changes
from balancer.extproc.endpoints import Ads, Endpoint, LastKnown, State
from balancer.extproc.names import ENDPOINTS_SERVICE, PICKS_SERVICE
from balancer.extproc.outcomes import AccessLog
from balancer.extproc.pick_service import ExternalProcessor
from balancer.extproc.picker import Addresses, Picker
from balancer.files.schema import is_local
from balancer.files.yaml_document import ConfigError
from balancer.native.router import SharedRouter
from balancer.scheduler.canary.selector import PolicySelector
from balancer.scheduler.events import Event, PeerTold, Report
from balancer.scheduler.peers import is_told_all
from balancer.server import logs
from balancer.server.admin.pages import Admin
from balancer.server.canary_state import CanaryState, state_file
from balancer.server.decision_log.kept_log import KeptLog
from balancer.server.events import EventLog, EventReporter
from balancer.server.fleet_front import FleetFront
from balancer.server.listener_probe import ListenerProbe
from balancer.server.metrics import Metrics
from balancer.server.metrics.inference import inference_metrics
from balancer.server.native.front import NativeFront, router_of
from balancer.server.page.page_data import AdminSources
from balancer.server.peers_front import PeersFront
from balancer.server.proxy_front import ProxyFront
from balancer.server.recorder import Recorder
from balancer.server.reports_front import ReportsFront
from balancer.server.security.gatekeeper import may_report
from balancer.server.security.listeners import AddressInUseError, Listeners
from balancer.server.tally import Recent, Traffic
from balancer.server.workers.drains import Drains
from balancer.server.workers.source import (
    ClusterObjectives,
    endpoint_states,
    follows_source,
    links_of,
    no_list_yet,
    source_of,
)
from policies.base import Policy

logger = logging.getLogger(__name__)

_LAST_WRITE_S = 5.0
_SETTLE_S = 2.0
"""After a start, how long to wait for workers whose agents do not report before picks are made without them."""


class App:
    def __init__(
        self,
        config: Config,
        source: Path | None,
        process: int = 0,
        overrides: Overrides | None = None,
        serving: Callable[[], None] = lambda: None,
    ) -> None:
        """`source`: the config file, watched if there is one; `process`: the number of this process, from 0;
        `overrides`: what is set over every later content of the file, as it already is over `config`, called in a
        thread; `serving`: called once all listeners are open. Reads the certificates: ConfigError where one cannot be
        used, or where the source of workers needs what is not installed.
        """
        self._overrides = overrides or Overrides({})
        self.state = ConfigState(config, str(source or "defaults"), time.time(), overrides=self._overrides.values)
        self._source = source
        self._process = process
        self._serving = serving
        self._clock = time.monotonic
        self._started_s = self._clock()
        self._workers: tuple[WorkerSpec, ...] | None = None
        self._list_refused = False
        self._endpoint_states: tuple[State, ...] = ()
        number = str(config.first_process + process)
        # Each process draws its own numbers: equal draws would send all processes to the same worker.
        self._seed = config.seed + config.first_process + process
        self.router = router_of(config, self._seed)
        self._traffic = Traffic(self.router, self._clock, lambda: bool(self._was_ready))
        # Numbers of decisions begin anew with each process; outcomes of those of the one before may still come.
        self._run = secrets.token_hex(8)
        audited = config.envoy.audit_log is not None or config.envoy.traces is not None
        self._picker = Picker(self.router, self._clock, number, self._run, audited)
        self.metrics = metrics = Metrics(self.router, self._clock, number)
        if (pool := config.admin.inference_pool) is not None:
            metrics.register(lambda: inference_metrics(metrics, self.router, pool))
        self._objectives = ClusterObjectives(config, self._picker)
        self._worker_source = source_of(config, source or Path(), self._refuse_workers, metrics, self._objectives)
        self._drains = Drains(self.router, self._clock, self._discovered)
        metrics.register(self._drains.metrics)
        events = EventLog()
        self._reporter = EventReporter(self.router, metrics, events, self._clock)
        self._recorder = Recorder(self.router, self._picker, metrics, self._clock, number)
        self._native: NativeFront | None = None
        if isinstance(self.router, SharedRouter):
            self._native = NativeFront(self.router, metrics, self._recorder)
        self._links, may_pick = links_of(config), self._traffic.noticing(self._may_pick)
        self._proxy = ProxyFront(config, self._recorder, self._clock, may_pick, self._links, self._picker)
        self._decided = CanaryState(state_file(config, source, process))
        self._decision_log = KeptLog(self.router, self._recorder, metrics, number, self._seed)
        self._ads = Ads()
        self._last_known = None if config.endpoints_folder is None else LastKnown(config.endpoints_folder)
        self._health = health.aio.HealthServicer()
        self._was_ready: bool | None = None
        self._settled = False
        self._sends_endpoints = False
        """Whether Envoys are to get endpoints here: from the first readiness on, or once the agents had their time."""
        self._listener = ListenerProbe(config)
        self._listeners = Listeners(config, process, metrics)
        self._fleet = FleetFront(config, process, self.router, metrics, self._links, self._proxy.by_http)
        sources = AdminSources(
            self.router,
            metrics,
            self._clock,
            readiness=lambda: self.not_ready() or self._listener.not_ready(),
            recent=self._recent,
            config=self.state,
            events=events,
            process=process,
            drains=self._drains,
            splits=self._picker.splits,
            held=self._picker.holding.explain,
            read_prompt=self._picker.read_prompt,
        )
        local = is_local(config.listen.admin_address(process))
        self.admin = Admin(sources, config.admin, self._listeners.role("admin"), local)
        self._apply(config)

    def not_ready(self) -> str:
        """Why picks cannot be made; empty: they can."""
        if self._workers is None:
            return no_list_yet(self.state.config, refused=self._list_refused)
        fleet = self.router.fleet
        if not fleet.workers:
            return "discovery lists no worker"
        silent = [worker.name for worker in fleet.workers if worker.number < 0]
        required = self.router.settings.reports_required
        # Once ready, a new worker that has not reported yet is no reason to stop picking.
        self._settled = self._settled or not silent or self._clock() - self._started_s > _SETTLE_S
        if required and silent and not self._settled:
            return f"waiting for the first report of {', '.join(silent[:5])}"
        if not fleet.servable("", "").any():
            why = "; ".join(f"{w.name}: {', '.join(fleet.objections(w, '', ''))}" for w in fleet.workers[:5])
            return f"no worker is ready ({why})"
        return ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            AddressInUseError: naming the field of the config, the address and the remedy.
        """
        config = self.state.config
        try:
            await self._serve_grpc()
            port = await self._serve_admin()
            reports = config.listen.reports_address(self._process)
            where = {"envoy": config.listen.envoy, "reports": reports, "admin_port": port}
            logger.info("serving", extra={**where, "process_number": self._process})
            self._serving()
            async with asyncio.TaskGroup() as tasks:
                internal_errors = self._recorder.internal_errors
                work: list[Coroutine[Any, Any, None]] = [
                    self._follow_workers(stop),
                    self._traffic.follow(stop, self._tick, self._reports.wake, internal_errors),
                    self._objectives.follow(stop),
                    self._peers.run(),
                    *(certificates.follow(stop) for certificates in self._listeners.certificates.values()),
                ]
                if self._source is not None:
                    work.append(self._follow_config(self._source, stop))
                if self._native is not None:
                    work.append(self._native.run(stop, self._clock, self._may_pick, self._traffic.flows))
                followers = [tasks.create_task(each) for each in work]
                await stop.wait()
                for follower in followers:
                    follower.cancel()
        finally:
            self._picker.holding.place_all()
            await self._health.enter_graceful_shutdown()
            await self._proxy.finish()
            await self.admin.stop()
            await self._listeners.stop()
            await self._fleet.stop()
            await self._links.close()
            self._decision_log.stop(_LAST_WRITE_S)

    async def _serve_grpc(self) -> None:
        may_pick = self._traffic.noticing(self._may_pick)
        processor = ExternalProcessor(self._picker, self._recorder, may_pick, self._proxy.turned_away)
        may_speak = may_report(self._listeners.role("reports"))
        self._reports = ReportsFront(self.router, self.metrics, self._observe, may_speak, self._traffic.report_pause_s)
        config, flows = self.state.config, self._traffic.flows
        self._peers = PeersFront(config, self._process, self.router, self.metrics, self._observe, flows)
        self.metrics.watch(self._reports.counts, self._ads, self.state, self._listeners.certificates)
        await self._health.set("liveness", health_pb2.HealthCheckResponse.SERVING)
        await self._announce_readiness()

        health = functools.partial(health_pb2_grpc.add_HealthServicer_to_server, self._health)
        outcomes = AccessLog(self._recorder, self._run).add_to
        await self._listeners.start(
            envoy=(processor.add_to, self._proxy.add_to, outcomes, self._ads.add_to, health),
            gateways=(processor.add_to, health),
            health=(health,),
            reports=(self._reports.of_agents.add_to,),
            relays=(self._reports.of_relays.add_to,),
            peers=(self._peers.add_to,),
            fleet=(self._fleet.add_to,),
        )
        await self._fleet.listen(self._listeners.certificates.get("envoy"))

    async def _serve_admin(self) -> int:
        address = self.state.config.listen.admin_address(self._process)
        certificates = self._listeners.certificates.get("admin")
        try:
            return await self.admin.start(address, None if certificates is None else certificates.ssl_context())
        except OSError as error:
            raise AddressInUseError("listen.admin", address) from error

    def _may_pick(self) -> bool:
        """Asked for each request, so what was found at the last tick holds; only from not ready to ready at once."""
        return bool(self._was_ready) or not self.not_ready()

    def _recent(self) -> Recent:
        if self._native is not None:
            self._native.catch_up()
        return self._recorder.recent

    def _observe(self, event: Event) -> None:
        if isinstance(event, Report):
            if event.worker not in self.router.fleet.index:
                self._reporter.unlisted(event.worker)
            self._drains.observe(event)
            if event.peers_in_flight is not None and is_told_all(self.router.fleet, event.worker):
                event = replace(event, peers_in_flight=None)  # of an agent that asks no more
        elif not isinstance(event, PeerTold):
            self._traffic.tick_soon()
        self.router.observe(event, self._clock())
        self._picker.holding.soon()

    def _apply(self, config: Config) -> None:
        """Make the swappable part of a config the one in force, all at once: nothing here waits."""
        policy = config.policy.built
        selector = self._selector(config, policy)
        self._picker.splits.configure(config.splits())
        self._decided.resume(config, policy, selector, self._picker.splits, self._clock())
        self.router.configure(policy, config.settings(), selector)
        requests = config.requests
        self._picker.names, self._picker.translated = requests.header_names(), config.translated
        self._picker.tenant_of_user = requests.tenant_of_user
        self._objectives.configure(config)
        self._picker.fallbacks_for_all = requests.fallbacks_for_all
        self._fleet.configure(config)
        self._picker.holding.soon()
        if self._native is not None:
            limits_tenants = config.forwards and config.proxy.tenants.limits_anybody
            self._native.configure(self._picker.names, config.log.decisions_share, limits_tenants)
        self._proxy.configure(config.proxy_settings())
        self._recorder.decision_lines.share = config.log.decisions_share
        logs.configure(config.log)
        self._decision_log.configure(config, self._source or Path(), self._clock())

    def _selector(self, config: Config, policy: Policy) -> PolicySelector | None:
        """Guard, shadow and rollout, as far as there are any; those that were there before keep their state."""
        plan = config.plan(policy)
        if not plan:
            return None
        before = self.router.selector
        return PolicySelector(policy, plan, self._seed, time.perf_counter, self._reporter, before, self._clock())

    def _accept(self, config: Config) -> None:
        if self.state.accept(config, time.time()):
            self._apply(config)
            if self._worker_source is None and not follows_source(config):
                self._discovered(tuple(config.discovery.workers))
            self._reporter.config_applied(self.state)

    def _refuse(self, error: ConfigError) -> None:
        self.state.refuse(error, time.time())
        self._reporter.config_refused(error)

    async def _follow_config(self, source: Path, stop: asyncio.Event) -> None:
        running = self.state.config
        await watch(
            source,
            self._accept,
            self._refuse,
            stop,
            running=running,
            overrides=self._checked,
            beside=lambda: learning_file(self.state.config, source),
        )

    def _checked(self, config: Config) -> Config:
        return self.state.with_learned(self._overrides(config))

    async def _follow_workers(self, stop: asyncio.Event) -> None:
        source = self._worker_source
        if source is None:
            self._discovered(tuple(self.state.config.discovery.workers))
            return
        async for workers in source.updates(stop):
            self._discovered(workers)

    def _refuse_workers(self, error: ConfigError) -> None:
        now = "there is none yet, so nothing is picked" if self._workers is None else "the last good one stays"
        self._list_refused = True
        logger.error("discovery.file: the list of workers is refused, %s: %s", now, error)

    def _discovered(self, listed: Sequence[WorkerSpec]) -> None:
        """A new list of workers, or other ones drained: router, addresses and Envoy learn of it in one step."""
        workers = self._drains.over(tuple(listed))
        if workers == self._workers:
            return
        old = self._workers or ()
        for event in changes(old, workers):
            self._observe(event)
        self._picker.addresses = Addresses(workers)
        of_kserve = tuple(worker for worker in workers if worker.protocol == "triton")
        if self._native is not None:
            self._native.workers(workers)
        self._links.update(workers)
        self._proxy.workers(workers)
        self._workers = workers
        self._fleet.workers(of_kserve)
        self._endpoint_states = ()
        self._send_endpoints()
        before, now = {worker.name for worker in old}, {worker.name for worker in workers}
        self.metrics.forget_gone()
        self._reporter.workers(before, now)

    def _send_endpoints(self) -> None:
        """Endpoints with what Envoy's own fallback should avoid, sent where they changed."""
        if self._workers is None:
            return
        states = endpoint_states(self._workers, self.router.fleet, settled=self._settled)
        if self._last_known is not None:
            self._last_known.retry(self._clock())
        if states == self._endpoint_states:
            return
        self._endpoint_states = states
        endpoints = [
            Endpoint(worker.name, worker.address, worker.grpc_port, worker.http_port, state, worker.protocol)
            for worker, state in zip(self._workers, states, strict=True)
        ]
        self._ads.update(endpoints)
        if self._last_known is not None and self._sends_endpoints:
            self._last_known.update(endpoints, self._clock())

    async def _tick(self, now_s: float) -> None:
        self.router.tick(now_s)
        self._recorder.tick(now_s)
        self._reporter.tick(now_s)
        self._decided.tick(self.router.selector, self._picker.splits, now_s)
        self._links.tick(now_s)
        self._fleet.tick(now_s)
        self._send_endpoints()
        await self._announce_readiness()
        if not self.not_ready():
            await self._listener.look(any(worker.protocol == "triton" for worker in self._workers or ()))

    async def _announce_readiness(self) -> None:
        ready = not self.not_ready()
        if not self._sends_endpoints and (ready or self._settled):
            self._sends_endpoints = True
            self._endpoint_states = ()
            self._send_endpoints()
            await self._health.set(ENDPOINTS_SERVICE, health_pb2.HealthCheckResponse.SERVING)
        if ready == self._was_ready:
            return
        self._was_ready = ready
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", "readiness", PICKS_SERVICE):
            await self._health.set(service, status)
        self._reporter.readiness(self.not_ready())
