package keylanes.bench;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** What a workload's handler does with one record; the reactor engine takes parts of it, the others block in it. */
final class Handler {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final Spec spec;
    private final Witness witness;
    private final long sleepNs;
    private final long spinNs;

    Handler(Spec spec, Witness witness) {
        this.spec = spec;
        this.witness = witness;
        sleepNs = Math.round(spec.handlerMs() * 1e6);
        spinNs = Math.round(spec.spinUs() * 1e3);
    }

    void handle(byte[] value) throws InterruptedException {
        if (!witness.wants(value)) {
            return;
        }
        witness.begin(value);
        work(value);
        witness.end(value);
    }

    /** What the handler does between its begin and its end. */
    void work(byte[] value) throws InterruptedException {
        if (spec.isStuck(value)) {
            new CountDownLatch(1).await();
        }
        if (sleepNs > 0) {
            TimeUnit.NANOSECONDS.sleep(sleepNs);
        }
        spin();
    }

    long sleepNs() {
        return sleepNs;
    }

    /**
     * Burn processor time of this thread. By the thread's own clock: by the wall's, a thousand threads that wait for
     * two cores would all have spun while they waited.
     */
    void spin() {
        if (spinNs > 0) {
            long until = THREADS.getCurrentThreadCpuTime() + spinNs;
            while (THREADS.getCurrentThreadCpuTime() < until) {
                Thread.onSpinWait();
            }
        }
    }
}
