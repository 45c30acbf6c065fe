"""One run of a case: an application at work, and a deposed leader that still answers.

t = 0          broker 1 loses its peers (and members B, C and A their links to it or all, in the rack)
+ some s       brokers 2 and 3 elect new leaders; broker 1 goes on answering with what it had
…              what happens to member A (see ``deposed_cases.Fate``)
+ WATCH_S      all links are mended; records come for ``AFTER_S`` more; all is processed, within ``LEVEL_S``
then           all members stop in order, one record more comes for each key, and the application starts again
"""

import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import MemberExpelled, MemberFenced, RangesGranted
from keylanes.offsets.events import Committed
from keylanes.runtime.logs.reader import control_topic, offsets_topic, signals_topic
from keylanes.runtime.logs.topics import changelog_specs, log_specs
from keylanes.state.changelog import changelog_topic

from .cluster_check import longest_gap, read
from .deposed_cases import Case, Led, Outcome, variant
from .deposed_cluster import TRANSACTIONS, DeposedCluster
from .deposed_judge import Judgement, judge_topics
from .deposed_members import AppProcess, Dropping, Orders, Place, wait_until
from .deposed_network import Network
from .deposed_watch import ControlLog, Entry

PARTITIONS = 6
"""Two for each member, so that no range has to move while the load is level."""
KEYS_OF_PARTITION = 8
MEMBERS = ("b", "c", "a")
"""In the order in which they join: A comes last, so that another one coordinates the group."""
JOIN_S, REST_S = 60.0, 3.0
"""So long a member may take to join; and so long nothing is granted before the group counts as settled."""
WORK_S = 9.0
"""So long the application works before anything happens."""
BALANCE_S, BALANCED_S = 25.0, 6.0
"""So long the group may move ranges under load; and so long nothing is granted before it counts as balanced."""
QUIET_BEFORE_S, QUIET_S = 1.5, 10.0
"""In a quiet run no record comes from so long before the cut until so long after it."""
ELECTED_S = 2.0
"""So long, too, all is quiet after others lead, in a quiet run."""
SUSPEND_S = 0.3
ELECT_S = 40.0
KILL_S, KILL_DROPPED_S = 8.0, 25.0
"""When A is killed, in seconds after commits are owed; the second while connections are dropped."""
GRANT_S = 60.0
"""So long A's ranges may take to be granted anew."""
WATCH_S, WATCH_DROPPED_S = 20.0, 30.0
"""So long the cut lasts on after A's ranges were granted anew; the second while connections are dropped."""
DURING_S = 8.0
"""There have to be commits in the last seconds of the cut."""
AFTER_S, LEVEL_S, STOP_S, AGAIN_S = 4.0, 45.0, 35.0, 60.0
ELECTIONS_MAX = 20
"""More elections than these are told."""
CHECK_SETTINGS = {"topic.metadata.refresh.interval.ms": "1000"}
FATED = "a"


class Lab(NamedTuple):
    """The common ground of runs. ``tell`` hears a line about each event."""

    cluster: DeposedCluster
    network: Network
    tell: Callable[[str], None]


class CaseRun:
    """One run, with a fresh name for the application. ``folder`` is the run's own."""

    def __init__(self, case: Case, run: int, lab: Lab, folder: Path) -> None:
        self._case, self._variant, self._folder = case, variant(case, run), folder
        self._cluster, self._network, self._tell = lab
        self._app = f"dp-{case.led}-{case.fate}-{run}-{time.time_ns() // 1_000_000_000 % 1_000_000}"
        self._source, self._output = f"{self._app}.in", f"{self._app}.out"
        self._members: dict[str, AppProcess] = {}
        self._topics: list[str] = []
        self._dropping: dict[str, Dropping] = {}
        self._orders: Orders | None = None
        self._log = ControlLog(lab.cluster.bootstrap, control_topic(self._app), lab.tell)
        self._outcome = Outcome(run=run, variant=self._variant.name)
        self._cut = self._owed = self._mended = 0.0

    def run(self) -> Outcome:
        """Run from fresh topics to the judgement. All processes of the application end in any case."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._make_topics()
            self._start_members()
            orders = self._orders = Orders(self._cluster.bootstrap, self._source, self._places())
            orders.start()
            wait_until(time.time() + WORK_S)
            self._wait_balanced()
            self._lose_leader(orders)
            self._befall()
            first_after = self._mend(orders)
            self._outcome.after = self._wait_level(first_after)
            self._stop_members()
            orders.finish()
            self._start_again()
            self._judge()
            self._cluster.delete(self._topics)
        finally:
            self._end()
        return self._outcome

    # --- before the cut ----------------------------------------------------------------------------------------------

    def _make_topics(self) -> None:
        """Make all topics of the application, and choose the leaders."""
        led = self._led()
        self._cluster.lead_transactions(by_first=TRANSACTIONS in led)
        stateful = {self._source: PARTITIONS} if self._variant.is_stateful else {}
        specs = [*log_specs(self._app, PARTITIONS), *changelog_specs(self._app, stateful)]
        topics = {spec.name: (spec.partitions, dict(spec.config)) for spec in specs}
        topics |= {self._source: (PARTITIONS, {}), self._output: (PARTITIONS, {})}
        self._topics = list(topics)
        self._tell(f"broker 1 leads {' and '.join(led)}")
        self._cluster.create({name: (count, name in led, config) for name, (count, config) in topics.items()})
        self._tell("the topics are made")
        self._log.start()

    def _led(self) -> list[str]:
        """The topics led by broker 1."""
        control, offsets = control_topic(self._app), offsets_topic(self._app)
        names: dict[Led, list[str]] = {
            "control": [control],
            "offsets": [offsets],
            "changelog": [changelog_topic(self._app, self._source)],
            "signals": [signals_topic(self._app)],
            "sources": [self._source],
            "outputs": [self._output],
            "transactions": [TRANSACTIONS],
            "control-offsets": [control, offsets],
        }
        return names[self._case.led]

    def _start_members(self) -> None:
        """Start the members one after the other, until A has ranges and the group is settled."""
        for number, name in enumerate(MEMBERS, 1):
            self._members[name] = self._member(name)
            self._await(partial(self._have_joined, number), f"member {name} joins")
        self._incarnation = self._log.joined()[-1]
        self._await(lambda: self._log.granted(self._incarnation) != [], "A is granted ranges")
        self._await(lambda: self._log.rest_s(time.time()) > REST_S, "the group is settled")
        self._tell(f"the group is settled; A is incarnation {self._incarnation}")

    def _have_joined(self, count: int) -> bool:
        return len(self._log.joined()) >= count

    def _member(self, name: str, *options: str) -> AppProcess:
        environment = {
            "DEPOSED_APP": self._app,
            "DEPOSED_SOURCE": self._source,
            "DEPOSED_OUTPUT": self._output,
            "DEPOSED_PLAIN": "" if self._variant.is_stateful else "1",
            "KEYLANES_BROKER": f"kafka://{self._cluster.bootstrap_of_members}",
            "KEYLANES_ALLOW_PLAINTEXT": "1",
            "KEYLANES_STATE_FOLDER": str(self._folder / f"state-{name}"),
        }
        kind = f"{name}{''.join(options)}"
        return AppProcess(name, environment, self._folder / f"{kind}.log", *options)

    def _places(self) -> list[Place]:
        """Keys of all partitions. Each key has a partition of its own."""
        return [Place(partition, b"%d-%d" % (partition, number))
                for number in range(KEYS_OF_PARTITION) for partition in range(PARTITIONS)]  # fmt: skip

    def _places_of_a(self) -> list[Place]:
        """The keys in A's ranges."""
        if found := [place for place in self._places() if self._log.owner(*place) == self._incarnation]:
            return found
        raise TimeoutError("no key lies in a range of A's")

    def _wait_balanced(self) -> None:
        """Wait until the group has balanced the load: a move is a transaction, and would be open at the cut."""
        until = time.time() + BALANCE_S
        while self._log.rest_s(time.time()) < BALANCED_S and time.time() < until:
            time.sleep(0.1)

    # --- the cut -----------------------------------------------------------------------------------------------------

    def _lose_leader(self, orders: Orders) -> None:
        """Cut broker 1 off, and wait until others lead."""
        if self._variant.is_quiet:
            orders.pause()
            wait_until(time.time() + QUIET_BEFORE_S)
        if self._case.fate == "suspended":
            self._members[FATED].send(signal.SIGSTOP)
            self._tell("A is suspended")
            wait_until(time.time() + SUSPEND_S)
        self._network.peers.cut()
        if self._case.fate == "rack":
            self._cut_rack()
        self._cut = time.time()
        self._tell("broker 1 is cut off from its peers" + (", and A with it" if self._case.fate == "rack" else ""))
        places = self._places_of_a() if self._case.loads_only_a else self._places()
        if not self._variant.is_quiet:
            orders.resume(places)
        while not self._cluster.is_deposed(self._led()):
            if time.time() > self._cut + ELECT_S:
                raise TimeoutError(f"no other leader of {self._led()} within {ELECT_S:.0f} s")
        self._owed = time.time()
        self._tell(f"others lead {self._led()}, {self._owed - self._cut:.1f} s after the cut")
        if self._case.drops and self._case.fate != "rack":
            self._drop(name for name in MEMBERS if name != FATED or self._case.fate == "killed")
        if self._variant.is_quiet:
            wait_until(max(self._cut + QUIET_S, self._owed + ELECTED_S))
            self._owed = time.time()
            orders.resume(places)

    def _cut_rack(self) -> None:
        """A reaches broker 1 alone, and nobody else does."""
        self._network.clients.cut()
        self._network.to_others[FATED].cut()
        for name, link in self._network.to_broker.items():
            if name != FATED:
                link.cut()

    def _befall(self) -> None:
        """Let A meet the fate of the case during the cut."""
        fate = self._case.fate
        if fate == "killed":
            wait_until(self._owed + (KILL_DROPPED_S if self._case.drops else KILL_S))
            self._members[FATED].send(signal.SIGKILL)
            self._tell("A is killed")
        if (granted := self._wait_granted_anew()) is None:
            self._note("A's ranges were not granted anew")
        elif fate != "killed":
            self._tell(f"A's ranges were granted anew, {granted.at - self._cut:.1f} s after the cut")
        if fate == "suspended":
            self._members[FATED].send(signal.SIGCONT)
            self._tell("A goes on")
        if fate == "rack":
            self._network.to_others[FATED].mend()
            self._tell("A's own link is back; broker 1's is not")
            if self._case.drops:
                self._drop([FATED])
        until = time.time() + (WATCH_DROPPED_S if self._case.drops else WATCH_S)
        while time.time() < until and self._live() > 0:
            time.sleep(0.1)

    def _wait_granted_anew(self) -> Entry | None:
        """Wait for the grant, for a limited time, and as long as another member lives."""
        until = time.time() + GRANT_S
        while (found := self._log.find(self._is_granted_anew)) is None:
            if time.time() > until or not self._others_live():
                return None
            time.sleep(0.02)
        return found

    def _others_live(self) -> bool:
        """Whether a member but A lives."""
        return any(member.code is None for name, member in self._members.items() if name != FATED)

    def _live(self) -> int:
        """How many members live."""
        return sum(member.code is None for member in self._members.values())

    def _is_granted_anew(self, entry: Entry) -> bool:
        """Whether ranges of a partition of A's are granted to another member, behind A's fence."""
        event = entry.event
        if not isinstance(event, RangesGranted) or event.incarnation == self._incarnation or entry.at < self._cut:
            return False
        fenced = [one.offset for one in self._log.entries()
                  if isinstance(one.event, MemberFenced) and one.event.incarnation == self._incarnation]  # fmt: skip
        had = {grant.partition for grant in self._log.granted(self._incarnation)}
        return bool(fenced) and entry.offset > fenced[0] and event.partition in had

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._dropping[name] = Dropping(name, self._folder / f"dropper-{name}.log")
        self._tell(f"connections to the coordinator are dropped: {', '.join(self._dropping)}")

    # --- after it ----------------------------------------------------------------------------------------------------

    def _mend(self, orders: Orders) -> int:
        """Mend all links; the first id written afterwards."""
        for name, dropping in self._dropping.items():
            for line in dropping.stop():
                self._note(f"{name}: {line}")
        self._dropping.clear()
        self._mended = time.time()
        self._network.mend()
        self._tell("all links are mended")
        first = orders.written
        wait_until(self._mended + AFTER_S)
        orders.pause()
        orders.flush()
        return first

    def _wait_level(self, first_after: int) -> bool:
        """Wait until all is processed; whether all records from ``first_after`` on are."""
        until, missing = time.time() + LEVEL_S, frozenset({first_after})
        while missing and time.time() < until:
            lives = self._live() > 0
            try:
                missing = self._judgement().missing
            except TimeoutError as error:
                self._note(str(error))
            if not lives:
                break
            time.sleep(0.5)
        waiting = [number for number in missing if number >= first_after]
        self._tell("all is processed" if not missing else f"not processed: {len(missing)}, new ones {len(waiting)}")
        return not waiting

    def _stop_members(self) -> None:
        """Stop all members in order."""
        for name, member in self._members.items():
            if member.code not in (None, -signal.SIGKILL):
                self._note(f"{name} had ended with exit code {member.code}: {member.last_words()}")
            member.send(signal.SIGTERM)
        until = time.time() + STOP_S
        self._outcome.codes = {name: member.ended(until - time.time()) for name, member in self._members.items()}
        self._tell(f"exit codes: {self._outcome.codes}")

    def _start_again(self) -> None:
        """Run the application once more, on the mended cluster, until it is level."""
        self._tell("the application is started again, until it is level")
        member = self._members["again"] = self._member("b", "--until", "level")
        self._outcome.again = member.ended(AGAIN_S)
        if self._outcome.again != 0:
            self._note(f"started again: {member.last_words()}")

    def _judge(self) -> None:
        """Fill in the outcome."""
        found, outcome = self._judgement(), self._outcome
        outcome.records, outcome.outputs = found.records, found.outputs
        outcome.doubled, outcome.misordered, outcome.miscounted = found.doubled, found.misordered, found.miscounted
        outcome.lost = len(found.missing) if outcome.again == 0 else found.overtaken
        if waiting := len(found.missing) - outcome.lost:
            self._note(f"{waiting} records are not processed, and nobody says that they are")
        if found.unknown:
            self._note(f"{found.unknown} outputs are of no record")
        rows = read(self._cluster.bootstrap, offsets_topic(self._app), CHECK_SETTINGS)
        times = sorted(row.timestamp / 1_000 for row in rows if isinstance(decode(row.value), Committed))
        outcome.silent_s = longest_gap(times, self._owed, self._mended)
        outcome.during = any(self._mended - DURING_S < at < self._mended for at in times)
        if (elections := self._log.elections()) > ELECTIONS_MAX:
            self._note(f"{elections} elections of a coordinator stand in the control log")
        expelled = {one.event.incarnation for one in self._log.entries() if isinstance(one.event, MemberExpelled)}
        self._tell(f"expelled: {sorted(expelled)}; {found.records} records, {found.outputs} outputs")

    def _judgement(self) -> Judgement:
        return judge_topics(self._cluster.bootstrap, self._source, self._output, CHECK_SETTINGS)

    # --- throughout --------------------------------------------------------------------------------------------------

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Raises TimeoutError, also when a member has ended."""
        until = time.monotonic() + JOIN_S
        while not is_so():
            ended = {name: member.code for name, member in self._members.items() if member.code is not None}
            if ended or time.monotonic() > until:
                words = "; ".join(self._members[name].last_words() for name in ended)
                raise TimeoutError(f"waited for: {what}; exit codes {ended or 'none'} {words}")
            time.sleep(0.05)

    def _note(self, what: str) -> None:
        self._outcome.notes.append(what)
        self._tell(f"note: {what}")

    def _end(self) -> None:
        """End all processes and threads, and mend the links."""
        for dropping in self._dropping.values():
            dropping.stop()
        if self._orders is not None:
            self._orders.stop()
        for member in self._members.values():
            member.close()
        self._network.mend()
        self._log.stop()
