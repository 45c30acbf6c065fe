package keylanes.bench;

import java.util.Map;

/** One peer at work on one topic. */
abstract class Engine {
    final Spec spec;
    final Witness witness;
    final Handler handler;

    Engine(Spec spec, Witness witness) {
        this.spec = spec;
        this.witness = witness;
        handler = new Handler(spec, witness);
    }

    /** Begin to consume; {@code onReady} is called once partitions are assigned. */
    abstract void start(Runnable onReady);

    /** Throws what made the engine stop by itself, if it did. */
    abstract void check() throws Exception;

    /** End in order: what was handled is committed afterwards. */
    abstract void close() throws Exception;

    /** Its libraries, by name. */
    abstract Map<String, String> versions();
}
