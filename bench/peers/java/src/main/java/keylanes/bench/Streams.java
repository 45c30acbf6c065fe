package keylanes.bench;

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams through the Processor API, at least once or exactly once. W3 counts per key in a persistent store with
 * cache and changelog, as the DSL's count has them; with an output topic each value is transformed and sent on; else a
 * record is only handled. Threads: as many as the order says, one where it says nothing.
 */
final class Streams extends Engine {
    private static final String STORE = "counts";
    private static final Duration CLOSE_MAX = Duration.ofSeconds(60);

    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private KafkaStreams streams;

    Streams(Spec spec, Witness witness) {
        super(spec, witness);
    }

    @Override
    void start(Runnable onReady) {
        streams = new KafkaStreams(topology(), settings());
        AtomicBoolean wasReady = new AtomicBoolean();
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING && wasReady.compareAndSet(false, true)) {
                onReady.run();
            }
        });
        streams.setUncaughtExceptionHandler(error -> {
            failure.compareAndSet(null, error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, spec.group());
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, spec.bootstrap());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, spec.folder().toString());
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, spec.parallel());
        settings.put(
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                spec.arm().startsWith("streams-eos") ? StreamsConfig.EXACTLY_ONCE_V2 : StreamsConfig.AT_LEAST_ONCE);
        if (spec.commitMs() > 0) {
            settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, spec.commitMs());
        }
        return settings;
    }

    private Topology topology() {
        Topology topology = new Topology();
        topology.addSource("source", new ByteArrayDeserializer(), new ByteArrayDeserializer(), spec.topic());
        if (spec.workload().equals("W3")) {
            topology.addProcessor("count", () -> new Count(witness), "source");
            topology.addStateStore(
                    Stores.keyValueStoreBuilder(
                                    Stores.persistentKeyValueStore(STORE), Serdes.ByteArray(), Serdes.Long())
                            .withCachingEnabled()
                            .withLoggingEnabled(Map.of()),
                    "count");
        } else if (spec.output().isEmpty()) {
            topology.addProcessor("handle", () -> new Handle(handler), "source");
        } else {
            topology.addProcessor("transform", () -> new Transform(witness, handler), "source");
            topology.addSink("sink", spec.output(), new ByteArraySerializer(), new ByteArraySerializer(), "transform");
        }
        return topology;
    }

    /** W3. */
    private static final class Count implements Processor<byte[], byte[], Void, Void> {
        private final Witness witness;
        private KeyValueStore<byte[], Long> counts;

        Count(Witness witness) {
            this.witness = witness;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            counts = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            byte[] value = record.value();
            if (!witness.wants(value)) {
                return;
            }
            witness.begin(value);
            Long found = counts.get(record.key());
            long count = found == null ? 0 : found;
            witness.sawState(value, count);
            counts.put(record.key(), count + 1);
            witness.end(value);
        }
    }

    /** A workload with an output topic. */
    private static final class Transform implements Processor<byte[], byte[], byte[], byte[]> {
        private final Witness witness;
        private final Handler handler;
        private ProcessorContext<byte[], byte[]> context;

        Transform(Witness witness, Handler handler) {
            this.witness = witness;
            this.handler = handler;
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            byte[] value = record.value();
            if (!witness.wants(value)) {
                return;
            }
            witness.begin(value);
            try {
                handler.work(value);
            } catch (InterruptedException closing) {
                throw new IllegalStateException("interrupted in a handler", closing);
            }
            context.forward(record.withValue(Value.reversed(value)));
            witness.end(value);
        }
    }

    /** No output: the handler alone. */
    private static final class Handle implements Processor<byte[], byte[], Void, Void> {
        private final Handler handler;

        Handle(Handler handler) {
            this.handler = handler;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            try {
                handler.handle(record.value());
            } catch (InterruptedException closing) {
                throw new IllegalStateException("interrupted in a handler", closing);
            }
        }
    }

    @Override
    void check() throws Exception {
        if (failure.get() != null || !streams.state().isRunningOrRebalancing()) {
            throw new IllegalStateException("Kafka Streams stopped by itself: " + streams.state(), failure.get());
        }
    }

    @Override
    void close() throws Exception {
        if (!streams.close(CLOSE_MAX)) {
            throw new IllegalStateException("Kafka Streams did not close within " + CLOSE_MAX);
        }
        if (failure.get() != null) {
            throw new IllegalStateException("Kafka Streams failed while it closed", failure.get());
        }
    }

    @Override
    Map<String, String> versions() {
        return Map.of("kafka-streams", AppInfoParser.getVersion());
    }
}
