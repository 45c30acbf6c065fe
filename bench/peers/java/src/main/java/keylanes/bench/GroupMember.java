package keylanes.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One process of a plain consumer group that handles records by noting them: {@code GroupMember ORDER.json}.
 *
 * <p>A note is u64 nanoseconds of the system's monotonic clock, u32 partition, u64 offset, little-endian. What was handled
 * is committed each 100 ms, before partitions are given up, and at the end. SIGTERM ends it in order.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final int NOTE_BYTES = 20;
    private static final long COMMIT_NS = 100_000_000;

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final FileChannel notes;
    private final ByteBuffer note = ByteBuffer.allocateDirect(NOTE_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    private final Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();

    private GroupMember(JsonNode order) throws IOException {
        notes = FileChannel.open(
                Path.of(order.get("notes").asText()), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        consumer = new KafkaConsumer<>(Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, order.get("bootstrap").asText(),
                ConsumerConfig.GROUP_ID_CONFIG, order.get("group").asText(),
                ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, order.get("session_ms").asInt(),
                ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG, CooperativeStickyAssignor.class.getName(),
                ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false,
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class,
                ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class));
    }

    /** Runs until SIGTERM. */
    public static void main(String[] arguments) throws Exception {
        JsonNode order = new ObjectMapper().readTree(Path.of(arguments[0]).toFile());
        GroupMember member = new GroupMember(order);
        Thread running = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            member.consumer.wakeup();
            try {
                running.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        member.run(order.get("topic").asText());
    }

    private void run(String topic) throws IOException {
        consumer.subscribe(List.of(topic), this);
        long committed = System.nanoTime();
        try {
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(20))) {
                    write(record.partition(), record.offset());
                    done.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                if (System.nanoTime() - committed >= COMMIT_NS) {
                    committed = System.nanoTime();
                    commit();
                }
            }
        } catch (WakeupException told) {
            commit();
        } finally {
            consumer.close();
            notes.close();
        }
    }

    private void write(int partition, long offset) throws IOException {
        note.clear();
        note.putLong(System.nanoTime()).putInt(partition).putLong(offset).flip();
        notes.write(note);
    }

    private void commit() {
        if (done.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(done);
            done.clear();
        } catch (RebalanceInProgressException later) {
            // The next poll joins the group anew; what was handled is committed behind it.
        }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        commit();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {}

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
        done.clear();
    }
}
