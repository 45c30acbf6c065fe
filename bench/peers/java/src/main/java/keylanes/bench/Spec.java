package keylanes.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Path;

/**
 * What one run shall do, as the harness wrote it.
 *
 * @param records   how many records of the topic this run handles: those whose running index is below
 * @param stuck     the running index of a record whose handler never returns, or -1
 * @param parallel  Kafka Streams' threads
 * @param commitMs  Kafka Streams' commit interval; 0 leaves the engine's own default
 * @param counters  a file of {@code records} × u32 that outlives the process, or empty
 * @param expected  a file of {@code keys} × u32, how many records each key has, or empty
 */
record Spec(
        String arm, String workload, String bootstrap, String topic, int partitions, String output, String group,
        Path folder, int records, int keys, double handlerMs, double spinUs, int inFlight, int parallel, int commitMs, long stuck,
        String counters, String expected) {

    static Spec read(Path path) throws IOException {
        JsonNode all = new ObjectMapper().readTree(path.toFile());
        return new Spec(
                needed(all, "arm").asText(), needed(all, "workload").asText(), needed(all, "bootstrap").asText(),
                needed(all, "topic").asText(), needed(all, "partitions").asInt(), all.path("output").asText(""),
                needed(all, "group").asText(), Path.of(needed(all, "folder").asText()), needed(all, "records").asInt(),
                needed(all, "keys").asInt(), all.path("handler_ms").asDouble(0), all.path("spin_us").asDouble(0),
                all.path("in_flight").asInt(1_000), all.path("parallel").asInt(1), all.path("commit_ms").asInt(0), all.path("stuck").asLong(-1),
                all.path("counters").asText(""), all.path("expected").asText(""));
    }

    private static JsonNode needed(JsonNode all, String name) throws IOException {
        if (!all.hasNonNull(name)) {
            throw new IOException("the spec lacks \"" + name + "\"");
        }
        return all.get(name);
    }

    /** W7: values carry the time at which they should have been sent, in the place of the running index. */
    boolean isOpenLoop() {
        return workload.equals("W7");
    }

    boolean hasStuckRecord() {
        return 0 <= stuck && stuck < records;
    }

    boolean isStuck(byte[] value) {
        return stuck >= 0 && Value.indexOrTime(value) == stuck;
    }

    /** How many handlers will return. */
    int returning() {
        return hasStuckRecord() ? records - 1 : records;
    }
}
