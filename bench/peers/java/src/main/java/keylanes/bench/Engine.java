package keylanes.bench;

import java.util.Map;

/** One peer at work on one topic. */
interface Engine {
    /** Begin to consume; {@code onReady} is called once partitions are assigned. */
    void start(Runnable onReady);

    /** Throws what made the engine stop by itself, if it did. */
    void check() throws Exception;

    /** End in order: what was handled is committed afterwards. */
    void close() throws Exception;

    /** Its libraries, by name. */
    Map<String, String> versions();
}
