package keylanes.bench;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.LongAdder;

/**
 * Sees each record when its handler begins and ends, from any thread, and keeps the clock: from the first begin to the
 * last end. In order means: a record begins when exactly those before it in its key have ended.
 */
final class Witness {
    private static final VarHandle COUNTER =
            MethodHandles.byteBufferViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final Spec spec;
    private final AtomicIntegerArray next;
    private final AtomicInteger running = new AtomicInteger();
    private final AtomicInteger runningMax = new AtomicInteger();
    private final AtomicInteger handled = new AtomicInteger();
    private final LongAdder outOfOrder = new LongAdder();
    private final LongAdder wrongStates = new LongAdder();
    private final AtomicBoolean began = new AtomicBoolean();
    private final CountDownLatch done = new CountDownLatch(1);
    private final MappedByteBuffer counters;
    private final long[] latencies;
    private final AtomicInteger latencyNext = new AtomicInteger();
    private volatile long beganNs;
    private volatile long beganAtMs;
    private volatile long beganCpuNs;
    private volatile long endedNs;
    private volatile long endedCpuNs;

    Witness(Spec spec) throws IOException {
        this.spec = spec;
        next = new AtomicIntegerArray(spec.keys());
        if (spec.isOpenLoop() && !spec.counters().isEmpty()) {
            throw new IllegalArgumentException("W7's values have no running index to count by: leave counters empty");
        }
        counters = spec.counters().isEmpty() ? null : mapped(Path.of(spec.counters()), 4L * spec.records());
        latencies = spec.isOpenLoop() ? new long[spec.records()] : null;
    }

    private static MappedByteBuffer mapped(Path path, long bytes) throws IOException {
        try (FileChannel file = FileChannel.open(
                path, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            return file.map(FileChannel.MapMode.READ_WRITE, 0, bytes);
        }
    }

    /** Whether the record belongs to this run: a run may handle only the first records of its topic. */
    boolean wants(byte[] value) {
        return spec.isOpenLoop() ? done.getCount() > 0 : Value.indexOrTime(value) < spec.records();
    }

    void begin(byte[] value) {
        if (!began.get() && began.compareAndSet(false, true)) {
            beganCpuNs = SYSTEM.getProcessCpuTime();
            beganNs = System.nanoTime();
            beganAtMs = System.currentTimeMillis();
        }
        if (next.get(Value.key(value)) != Value.number(value)) {
            outOfOrder.increment();
        }
        if (spec.isStuck(value)) {
            count(value); // it never ends: that it began is what can be counted
        }
        int now = running.incrementAndGet();
        if (now > runningMax.get()) {
            runningMax.accumulateAndGet(now, Math::max);
        }
    }

    void end(byte[] value) {
        if (latencies != null) {
            latencies[latencyNext.getAndIncrement()] = nowNs() - Value.indexOrTime(value);
        }
        next.incrementAndGet(Value.key(value));
        running.decrementAndGet();
        count(value);
        // Last of all: who counts the last record must find what every other handler has written.
        if (handled.incrementAndGet() == spec.returning()) {
            endedNs = System.nanoTime();
            endedCpuNs = SYSTEM.getProcessCpuTime();
            done.countDown();
        }
    }

    private void count(byte[] value) {
        if (counters != null) {
            COUNTER.getAndAdd(counters, 4 * (int) Value.indexOrTime(value), 1);
        }
    }

    /** W3: what the state held before this record; it must be the record's own number within its key. */
    void sawState(byte[] value, long count) {
        if (count != Value.number(value)) {
            wrongStates.increment();
        }
    }

    private static long nowNs() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    /** Whether everything was handled within that time. */
    boolean awaitDone(long milliseconds) throws InterruptedException {
        return done.await(milliseconds, TimeUnit.MILLISECONDS);
    }

    int records() {
        return handled.get();
    }

    double seconds() {
        return (endedNs - beganNs) / 1e9;
    }

    /** The first begin, in seconds since the epoch. */
    double beganAtSeconds() {
        return beganAtMs / 1e3;
    }

    double cpuMicrosecondsPerRecord() {
        return (endedCpuNs - beganCpuNs) / 1e3 / records();
    }

    int concurrencyPeak() {
        return runningMax.get();
    }

    long outOfOrder() {
        return outOfOrder.sum();
    }

    long wrongStates() {
        return wrongStates.sum();
    }

    /** How many keys did not get exactly the records that were expected. */
    int incompleteKeys(Path expected) throws IOException {
        ByteBuffer counts = ByteBuffer.wrap(Files.readAllBytes(expected)).order(ByteOrder.LITTLE_ENDIAN);
        if (counts.remaining() != 4 * next.length()) {
            throw new IOException(expected + " has " + counts.remaining() + " bytes for " + next.length() + " keys");
        }
        int wrong = 0;
        for (int key = 0; key < next.length(); key++) {
            wrong += counts.getInt(4 * key) == next.get(key) ? 0 : 1;
        }
        return wrong;
    }

    boolean hasLatencies() {
        return latencies != null;
    }

    void writeLatencies(Path path) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(8 * latencies.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(latencies);
        Files.write(path, bytes.array());
    }
}
