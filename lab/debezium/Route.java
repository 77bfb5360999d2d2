import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;

/**
 * Prints what Debezium would send to Kafka with a file of properties, as JSON: a line per record, with its topic, key, headers and value, the last in base64.
 * Arguments: the file, then settings that it does not have, as name=value. The engine keeps the order of the log and acknowledges a record after its line is written, as
 * Kafka Connect does after its request. SIGTERM stops it after the record in hand. An error ends it with exit code 1 and all causes on stderr.
 */
public final class Route {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Converter keys;
    private final Converter values;
    private final HeaderConverter headers;

    private Route(Properties properties) throws Exception {
        keys = made(Converter.class, properties, "key.converter");
        keys.configure(below(properties, "key.converter."), true);
        values = made(Converter.class, properties, "value.converter");
        values.configure(below(properties, "value.converter."), false);
        headers = made(HeaderConverter.class, properties, "header.converter");
        headers.configure(below(properties, "header.converter."));
    }

    private static <T> T made(Class<T> kind, Properties properties, String name) throws Exception {
        return kind.cast(Class.forName(properties.getProperty(name)).getDeclaredConstructor().newInstance());
    }

    /** Returns the properties that begin with a prefix, without it. */
    private static Map<String, Object> below(Properties properties, String prefix) {
        var found = new LinkedHashMap<String, Object>();
        for (var name : properties.stringPropertyNames()) {
            if (name.startsWith(prefix)) {
                found.put(name.substring(prefix.length()), properties.getProperty(name));
            }
        }
        return found;
    }

    private void print(ChangeEvent<SourceRecord, SourceRecord> event) {
        var record = event.value();
        var sent = new LinkedHashMap<String, String>();
        for (var header : record.headers()) {
            sent.put(header.key(), text(headers.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value())));
        }
        var line = new LinkedHashMap<String, Object>();
        line.put("topic", record.topic());
        line.put("key", text(keys.fromConnectData(record.topic(), record.keySchema(), record.key())));
        line.put("headers", sent);
        line.put("value", values.fromConnectData(record.topic(), record.valueSchema(), record.value()));
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        var properties = new Properties();
        try (var in = Files.newBufferedReader(Path.of(args[0]))) {
            properties.load(in);
        }
        for (int i = 1; i < args.length; i++) {
            var at = args[i].indexOf('=');
            properties.setProperty(args[i].substring(0, at), args[i].substring(at + 1));
        }
        var failed = new AtomicBoolean();
        var engine = DebeziumEngine.create(Connect.class).using(properties).notifying(new Route(properties)::print)
            .using((DebeziumEngine.CompletionCallback) (success, message, error) -> {
                failed.set(!success);
                for (var cause = error; cause != null; cause = cause.getCause()) {
                    System.err.println(cause);
                }
            }).build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                engine.close();
            } catch (Exception e) { // it has ended already
            }
        }));
        engine.run();
        Runtime.getRuntime().halt(failed.get() ? 1 : 0);
    }
}
