package keylanes.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * One process of a Kafka Streams application that does what handover_app.py does with state, exactly once:
 * {@code HoldingMember ORDER.json}. Its settings are those that lose least when members come and go: a standby, warm-up
 * replicas, the shortest probing interval that is allowed, and a name.
 *
 * <p>The first record of a key fills {@code entries} entries of a store; of the others one in {@code change_every} replaces
 * one, and the rest read one. Notes and samples are those of handover_app.py; what was restored, and what standbys and
 * warm-ups have taken in, is counted in records of the changelog. SIGTERM ends it in order, and it leaves the group at once.
 */
public final class HoldingMember {
    private static final String STORE = "held";
    private static final int NOTE_BYTES = 32;
    private static final int VALUE_BYTES = 100;
    private static final int ENTRY_BYTES = 128;
    private static final long SAMPLE_MS = 250;
    private static final long WARMED_UP_RECORDS = 10_000;
    private static final CloseOptions LEAVE = CloseOptions.timeout(Duration.ofSeconds(60))
            .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP);

    private final JsonNode order;
    private final MappedByteBuffer notes;
    private final AtomicLong records = new AtomicLong();
    private final AtomicLong restored = new AtomicLong();
    private final AtomicLong takenIn = new AtomicLong();

    private HoldingMember(JsonNode order) throws IOException {
        this.order = order;
        try (FileChannel file = FileChannel.open(
                Path.of(order.get("notes").asText()),
                StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            notes = file.map(FileChannel.MapMode.READ_WRITE, 0, order.get("notes_max").asLong() * NOTE_BYTES);
        }
        notes.order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Runs until SIGTERM. */
    public static void main(String[] arguments) throws Exception {
        new HoldingMember(new ObjectMapper().readTree(Path.of(arguments[0]).toFile())).run();
    }

    private void run() throws Exception {
        KafkaStreams streams = new KafkaStreams(topology(), settings());
        streams.setGlobalStateRestoreListener(new Restored());
        streams.setStandbyUpdateListener(new TakenIn());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            boolean isClosed = streams.close(LEAVE);
            sample();
            Runtime.getRuntime().halt(isClosed ? 0 : 1); // the system's own code would be that of the signal
        }));
        streams.start();
        while (true) {
            sample();
            Thread.sleep(SAMPLE_MS);
        }
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, order.get("group").asText());
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, order.get("bootstrap").asText());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, order.get("folder").asText());
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, 1);
        settings.put(StreamsConfig.MAX_WARMUP_REPLICAS_CONFIG, order.get("partitions").asInt());
        settings.put(StreamsConfig.PROBING_REBALANCE_INTERVAL_MS_CONFIG, 60_000L);
        settings.put(StreamsConfig.ACCEPTABLE_RECOVERY_LAG_CONFIG, WARMED_UP_RECORDS);
        settings.put(
                StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG),
                order.get("session_ms").asInt());
        settings.put(
                StreamsConfig.consumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), order.get("name").asText());
        return settings;
    }

    private Topology topology() {
        Topology topology = new Topology();
        topology.addSource(
                "source", new ByteArrayDeserializer(), new ByteArrayDeserializer(), order.get("topic").asText());
        topology.addProcessor("hold", Hold::new, "source");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(
                                Stores.persistentKeyValueStore(STORE), Serdes.ByteArray(), Serdes.ByteArray())
                        .withCachingEnabled()
                        .withLoggingEnabled(Map.of()),
                "hold");
        return topology;
    }

    /** What a record does. */
    private final class Hold implements Processor<byte[], byte[], Void, Void> {
        private final int entries = order.get("entries").asInt();
        private final int changeEvery = order.get("change_every").asInt();
        private ProcessorContext<Void, Void> context;
        private KeyValueStore<byte[], byte[]> held;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            this.context = context;
            held = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            long began = System.nanoTime();
            byte[] value = record.value();
            byte[] entry = Arrays.copyOfRange(value, Math.max(value.length - VALUE_BYTES, 0), value.length);
            int number = Value.number(value);
            if (number % changeEvery != 0) {
                held.get(keyOf(record.key(), number % entries));
            } else if (number != 0) {
                held.put(keyOf(record.key(), number / changeEvery % entries), entry);
            } else {
                for (int i = 0; i < entries; i++) {
                    held.put(keyOf(record.key(), i), entry);
                }
            }
            note(began, context.recordMetadata().map(of -> of.partition()).orElse(-1), value);
        }
    }

    private static byte[] keyOf(byte[] key, int entry) {
        return ByteBuffer.allocate(key.length + Integer.BYTES).put(key).putInt(entry).array();
    }

    /** Stream threads are one. */
    private void note(long began, int partition, byte[] value) {
        long ended = System.nanoTime();
        int at = (int) records.get() * NOTE_BYTES;
        long late = Math.min(Math.max(ended - Value.indexOrTime(value), 0) / 1_000, 0xFFFF_FFFFL);
        notes.putLong(at, began).putInt(at + 16, partition).putInt(at + 20, (int) late);
        notes.putInt(at + 24, Value.key(value)).putInt(at + 28, Value.number(value)).putLong(at + 8, ended);
        records.incrementAndGet();
    }

    private synchronized void sample() {
        long read = restored.get() + takenIn.get();
        String line = String.format(
                "{\"records\": %d, \"changelog_records\": %d, \"changelog_bytes\": %d, \"copied_bytes\": %d}%n",
                records.get(), read, read * ENTRY_BYTES, takenIn.get() * ENTRY_BYTES);
        try {
            Files.writeString(
                    Path.of(order.get("samples").asText()), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException failure) {
            throw new IllegalStateException("a sample can't be written", failure);
        }
    }

    /** Counts what is restored before a task works. */
    private final class Restored implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long first, long end) {}

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {
            restored.addAndGet(count);
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long total) {}
    }

    /** Counts what standbys and warm-ups take in. */
    private final class TakenIn implements StandbyUpdateListener {
        @Override
        public void onUpdateStart(TopicPartition partition, String store, long first) {}

        @Override
        public void onBatchLoaded(
                TopicPartition partition, String store, TaskId task, long end, long count, long last) {
            takenIn.addAndGet(count);
        }

        @Override
        public void onUpdateSuspended(
                TopicPartition partition, String store, long offset, long end, SuspendReason reason) {}
    }
}
