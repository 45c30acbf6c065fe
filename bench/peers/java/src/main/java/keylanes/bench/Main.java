package keylanes.bench;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;

/**
 * One run of one arm: {@code Main SPEC.json}. Writes events to stdout, one JSON object a line: "ready" when partitions
 * are assigned, "result" when everything is handled. Exit code 0 after a close in order, 1 after any failure.
 */
public final class Main {
    private static final long CHECK_MS = 500;
    private static final ObjectMapper JSON = new ObjectMapper();

    private Main() {}

    /** Ends the process. */
    public static void main(String[] arguments) {
        try {
            if (arguments.length != 1) {
                throw new IllegalArgumentException("usage: keylanes.bench.Main SPEC.json");
            }
            run(Spec.read(Path.of(arguments[0])));
            System.exit(0);
        } catch (Throwable failure) {
            System.err.println("the run failed: " + failure);
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void run(Spec spec) throws Exception {
        Witness witness = new Witness(spec);
        Engine engine = switch (spec.arm()) {
            case "parallel-consumer-core", "parallel-consumer-reactor" -> new ParallelConsumer(spec, witness);
            case "streams-alo", "streams-eos", "streams-eos-2" -> new Streams(spec, witness);
            default -> throw new IllegalArgumentException("no such arm: " + spec.arm());
        };
        engine.start(() -> say(Map.of("event", "ready")));
        while (!witness.awaitDone(CHECK_MS)) {
            engine.check();
        }
        say(result(spec, witness, engine));
        if (spec.hasStuckRecord()) {
            new CountDownLatch(1).await(); // no engine can close in order around it: the harness ends the process
        }
        engine.close();
    }

    private static Map<String, Object> result(Spec spec, Witness witness, Engine engine) throws IOException {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("event", "result");
        result.put("records", witness.records());
        result.put("seconds", witness.seconds());
        result.put("began_at_s", witness.beganAtSeconds());
        result.put("cpu_us_per_record", witness.cpuMicrosecondsPerRecord());
        result.put("rss_peak_bytes", residentPeakBytes());
        result.put("concurrency_peak", witness.concurrencyPeak());
        result.put("out_of_order", witness.outOfOrder() + witness.wrongStates());
        if (witness.wrongStates() > 0) {
            System.err.println(witness.wrongStates() + " records found another count than their number in the state");
        }
        if (!spec.expected().isEmpty()) {
            result.put("incomplete_keys", witness.incompleteKeys(Path.of(spec.expected())));
        }
        if (witness.hasLatencies()) {
            Path path = spec.folder().resolve("latency_ns");
            witness.writeLatencies(path);
            result.put("latency_ns", path.toString());
        }
        Map<String, String> versions = new TreeMap<>(engine.versions());
        versions.put("java", System.getProperty("java.runtime.version"));
        result.put("versions", versions);
        return result;
    }

    /** The kernel's own high-water mark of this process. */
    private static long residentPeakBytes() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return 1_024 * Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new IOException("/proc/self/status has no VmHWM");
    }

    private static synchronized void say(Map<String, Object> event) {
        try {
            System.out.println(JSON.writeValueAsString(event));
            System.out.flush();
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
