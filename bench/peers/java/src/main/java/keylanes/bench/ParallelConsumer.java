package keylanes.bench;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelEoSStreamProcessor;
import io.confluent.parallelconsumer.internal.AbstractParallelEoSStreamProcessor;
import io.confluent.parallelconsumer.reactor.ReactorProcessor;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.AppInfoParser;
import org.reactivestreams.Publisher;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/**
 * Confluent Parallel Consumer in key order, at least once. The core engine blocks one thread for each record in flight;
 * the reactor engine waits on a timer. Options stand at the library's defaults but for these, each of which was measured
 * against its default on two cores:
 *
 * <ul>
 *   <li>Commits are asynchronous, the fastest mode, and {@link #COMMIT_INTERVAL} apart instead of 5 s. What is done above
 *       the first open record goes into a commit's metadata, which holds 4 KB. After a commit whose metadata grew beyond
 *       three quarters of that, nothing new is taken from the partition until the next commit finds them smaller: with
 *       5 s between two commits, engines stood still for most of a run.
 *   <li>The reactor engine calls the handler on the engine's own thread ({@code Schedulers.immediate}) instead of an
 *       elastic pool: these handlers never block.
 *   <li>The JVM collects garbage in parallel (the harness's option): G1's barriers and threads cost more than its short
 *       pauses bring.
 * </ul>
 *
 * Tried without gain or with loss: {@code messageBufferSize}, {@code initialLoadFactor}, commits 50, 200 and 500 ms
 * apart, 2,000 in flight, a larger young generation, the Kafka client that the library was built with, smaller fetches.
 * A poll brings at most 500 records, the client's default: with 5,000 the no-op drain was a tenth to a half slower, and
 * waiting handlers were no faster. 300 threads instead of 1,000 made the core engine a twentieth faster, but all arms
 * have 1,000 in flight.
 */
final class ParallelConsumer extends Engine {
    private static final Duration COMMIT_INTERVAL = Duration.ofMillis(100);
    private static final String JAR_PROPERTIES =
            "/META-INF/maven/io.confluent.parallelconsumer/parallel-consumer-core/pom.properties";
    private static final Duration CLOSE_MAX = Duration.ofSeconds(60);

    private final AtomicReference<RuntimeException> failure = new AtomicReference<>();
    private AbstractParallelEoSStreamProcessor<byte[], byte[]> processor;

    ParallelConsumer(Spec spec, Witness witness) {
        super(spec, witness);
    }

    @Override
    void start(Runnable onReady) {
        if (spec.arm().equals("parallel-consumer-reactor")) {
            var reactor = new ReactorProcessor<>(options(), Schedulers::immediate);
            processor = reactor;
            subscribe(onReady);
            reactor.react(context -> react(context.getSingleConsumerRecord().value()));
        } else {
            var core = new ParallelEoSStreamProcessor<>(options());
            processor = core;
            subscribe(onReady);
            core.poll(context -> block(context.getSingleConsumerRecord().value()));
        }
    }

    private ParallelConsumerOptions<byte[], byte[]> options() {
        Map<String, Object> settings = Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, spec.bootstrap(),
                ConsumerConfig.GROUP_ID_CONFIG, spec.group(),
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        return ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer()))
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(spec.inFlight())
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .commitInterval(COMMIT_INTERVAL)
                .build();
    }

    private void subscribe(Runnable onReady) {
        processor.subscribe(List.of(spec.topic()), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                onReady.run();
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
        });
    }

    private void block(byte[] value) {
        try {
            handler.handle(value);
        } catch (InterruptedException closing) {
            Thread.currentThread().interrupt();
        } catch (RuntimeException error) {
            throw failed(error);
        }
    }

    /** A record counts as done when its publisher emits, not when it completes: so each of these emits once. */
    private Publisher<?> react(byte[] value) {
        try {
            if (!witness.wants(value)) {
                return Mono.just(true);
            }
            witness.begin(value);
        } catch (RuntimeException error) {
            throw failed(error);
        }
        if (spec.isStuck(value)) {
            return Mono.never();
        }
        if (handler.sleepNs() > 0) {
            return Mono.delay(Duration.ofNanos(handler.sleepNs())).doOnNext(tick -> end(value));
        }
        end(value);
        return Mono.just(true);
    }

    private void end(byte[] value) {
        try {
            handler.spin();
            witness.end(value);
        } catch (RuntimeException error) {
            throw failed(error);
        }
    }

    /** The engine would run the record again and again: the run ends instead. */
    private RuntimeException failed(RuntimeException error) {
        failure.compareAndSet(null, error);
        return error;
    }

    @Override
    void check() throws Exception {
        if (failure.get() != null) {
            throw new IllegalStateException("a handler failed", failure.get());
        }
        if (processor.isClosedOrFailed()) {
            throw new IllegalStateException("Parallel Consumer stopped by itself", processor.getFailureCause());
        }
    }

    @Override
    void close() {
        processor.closeDrainFirst(CLOSE_MAX);
    }

    @Override
    Map<String, String> versions() {
        return Map.of("parallel-consumer", jarVersion(), "kafka-clients", AppInfoParser.getVersion());
    }

    private static String jarVersion() {
        Properties properties = new Properties();
        try (InputStream file = ParallelEoSStreamProcessor.class.getResourceAsStream(JAR_PROPERTIES)) {
            properties.load(file);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return properties.getProperty("version");
    }
}
