"""An example of every kind of event and of signal, for the golden files."""

from keylanes.offsets import control_events, event_values, events, signals
from keylanes.offsets.event_values import Band, Edge, Span, Tile, Writer

FLIGHTS = event_values.Sourced("flüge", 128, "group:flights", 2**64 - 1, 250.5)
MOVE = event_values.PlannedMove(
    move=41,
    topic="flüge",
    partition=2,
    first=0,
    end=2**31,
    origin=3,
    target=4,
    state_bytes=2**30,
    gain=0.125,
    cost_us=1_500_000,
)

CONTROL_EVENTS: tuple[control_events.ControlEvent, ...] = (
    control_events.AppCreated(app="flights", hash_name="xxh64-seed42-high32", log_partitions=4),
    control_events.CoordinatorElected(term=7, instance="berlin-1", birth="5f0c2b", app_birth="09a3d7"),
    control_events.MemberJoined(
        term=7,
        number=1,
        incarnation=3,
        instance="berlin-1",
        birth="5f0c2b",
        transactional_ids=("flights.3.5f0c2b.0", "flights.3.5f0c2b.1"),
        host="host-a",
        endpoint="10.0.0.7:8080",
        capacity=1.5,
        level=1,
        topics=(FLIGHTS, event_values.Sourced("wetter", 1, "earliest", 0, 0.0)),
        writes=("verspätungen",),
        until_level=True,
    ),
    control_events.MemberRefused(term=7, number=2, birth="77aa01", reason="name in use"),
    control_events.MemberExpelled(term=7, number=3, incarnation=2, cause="silent", hold_ms=60_000),
    control_events.MemberFenced(term=7, number=4, incarnation=2),
    control_events.PlanMade(
        term=7, number=5, plan=9, group_epoch=12, cause="joined", input=70_000, part=0, parts=2, moves=(MOVE,)
    ),
    control_events.CopyAsked(
        term=7,
        number=6,
        move=41,
        incarnation=4,
        topic="flüge",
        partition=2,
        bands=(Span(0, 2**30), Span(2**30, 2**31)),
        role="learner",
        bytes_per_s=2**24,
    ),
    control_events.CopyEnded(term=7, number=7, move=41, reason="withdrawn"),
    control_events.ReleaseAsked(
        term=7,
        number=8,
        move=41,
        incarnation=3,
        epoch=5,
        topic="flüge",
        partition=2,
        first=0,
        end=2**31,
        deadline_ms=30_000,
    ),
    control_events.ReleaseWithdrawn(term=7, number=9, move=41, reason="deadline"),
    control_events.PartitionStarted(
        term=7, number=10, topic="flüge", partition=2, offset=336_775, start="group:flights", partitions=4
    ),
    control_events.RangesGranted(
        term=7,
        number=11,
        move=41,
        incarnation=4,
        epoch=6,
        topic="flüge",
        partition=2,
        bands=(Band(0, 2**30, 336_775), Band(2**30, 2**31, 2**40)),
        bounds=(2**29, 2**30),
        writers=(Writer(2, 300), Writer(3, 7)),
    ),
    control_events.StoreDeclared(
        term=7,
        number=12,
        store=1,
        name="seen",
        topic="flüge",
        kind="map",
        key_type="str",
        value_type="struct",
        codec="json",
    ),
    control_events.SourceIdentified(term=7, number=13, topic="flüge", identity="5bcb647a9e52401a8ffcce0dcec26e07"),
    control_events.EndsPinned(term=7, number=14, ends=(event_values.PinnedEnd("flüge", 2, 2**40),)),
    control_events.AnswerAsked(term=7, number=15, input=70_000, incarnation=4, deadline_ms=5_000),
    control_events.LevelRaised(term=7, number=16, level=1),
)

OFFSET_EVENTS: tuple[events.OffsetEvent, ...] = (
    events.LogOpened(
        app="flights",
        hash_name="xxh64-seed42-high32",
        log_partition=1,
        log_partitions=4,
        incarnation=3,
        transaction=0,
    ),
    events.WorkersCut(
        incarnation=3, transaction=1, epoch=5, topic="flüge", partition=2, worker=0, bounds=(0, 2**31, 2**32)
    ),
    events.WorkerSplit(incarnation=3, transaction=2, epoch=5, topic="flüge", partition=2, worker=0, at=2**30, left=2),
    events.WorkersMerged(incarnation=3, transaction=3, epoch=5, topic="flüge", partition=2, left=2, right=3, worker=4),
    events.RangesReleased(
        incarnation=3,
        transaction=4,
        epoch=5,
        topic="flüge",
        partition=2,
        move=41,
        bands=(Edge(0, 2**30, 336_775), Edge(2**30, 2**31, None)),
        bounds=(2**29,),
    ),
    events.Committed(
        incarnation=3,
        transaction=5,
        part=0,
        parts=1,
        epoch=5,
        topic="flüge",
        partition=2,
        tiles=(
            Tile(worker=0, count=128, first=0, end=2**31, offset_from=336_775, offset_to=336_776),
            Tile(worker=128, count=1, first=2**31, end=2**32, offset_from=2**40, offset_to=2**63 - 1),
        ),
        outputs=2,
        dead_letters=1,
        digest=2**64 - 1,
    ),
    events.StateChanged(incarnation=3, transaction=7, topic="flüge", partition=2, changes=70_000, succeeded=(1, 2)),
    events.TopicsWritten(
        incarnation=3, transaction=8, topic="flüge", partition=2, destinations=("alarme", "verspätungen")
    ),
    events.SnapshotTaken(
        incarnation=3,
        transaction=9,
        part=0,
        parts=2,
        app="flights",
        position=1_000_000,
        topic="flüge",
        partition=2,
        epochs=(
            event_values.EpochFold(
                epoch=5,
                incarnation=3,
                pieces=(
                    event_values.Piece(0, 2**31, 100, 200, None, 4, False),
                    event_values.Piece(2**31, 2**32, 100, 150, 150, None, True),
                ),
                bounds=(2**29, 2**30),
            ),
        ),
        violations=(4,),
        changed=(Writer(2, 300), Writer(3, 7)),
        destinations=("alarme",),
        transactions=(Writer(3, 8), Writer(5, 70_000)),
    ),
)
EVENTS: tuple[events.Event, ...] = (*CONTROL_EVENTS, *OFFSET_EVENTS)

SIGNALS: tuple[signals.Signal, ...] = (
    signals.JoinAsked(
        instance="berlin-1",
        birth="5f0c2b",
        producers=2,
        host="host-a",
        endpoint="10.0.0.7:8080",
        capacity=1.5,
        level=1,
        topics=(FLIGHTS,),
        writes=("verspätungen",),
        until_level=False,
        stores=(signals.StoreAsked("seen", "flüge", "map", "str", "struct", "json"),),
        expected=4,
    ),
    signals.MoveAsked(
        request="9f21", by="app.grant", topic="flüge", partition=2, first=0, end=2**31, target=4, epoch=5
    ),
    signals.ExpelAsked(request="9f22", by="process 7", incarnation=3, cause="its process has died"),
    signals.Beat(
        incarnation=3,
        birth="5f0c2b",
        control_position=70_000,
        loop_lag_ms=12,
        term=7,
        number=300,
        rates=(signals.Rate("flüge", 250.5),),
    ),
    signals.LeaveAsked(incarnation=3, birth="5f0c2b", returns_in_ms=60_000, is_done=True),
    signals.Copies(incarnation=4, copies=(signals.Copy(41, 900_000, 1_000_000, 2**24, is_ready=False),)),
    signals.Load(
        incarnation=3,
        interval_ms=10_000,
        bands=(
            signals.BandLoad(
                topic="flüge",
                partition=2,
                first=0,
                end=2**31,
                epoch=5,
                busy_us=4_000_000,
                records=200_000,
                backlog=70_000,
                state_bytes=2**30,
                points=((0, 1_000_000), (2**30, 3_000_000)),
            ),
        ),
    ),
    signals.ReleaseTold(
        incarnation=3, transaction=4, move=41, topic="flüge", partition=2, bands=(Edge(0, 2**31, 336_775),)
    ),
    signals.Answer(incarnation=4, input=70_000, moves=(MOVE,)),
    signals.CoordinatorBeat(
        term=7,
        number=300,
        resigns=False,
        interval_ms=1_000,
        is_level=False,
        dismissed=(3,),
        rates=(signals.MemberRates(3, (signals.Rate("flüge", 250.5),)),),
        waits=(signals.Wait(12, signals.SLOT),),
    ),
)
