import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.dataformat.yaml.YAMLFactory;
import io.strimzi.api.kafka.model.kafka.Kafka;
import io.strimzi.api.kafka.model.nodepool.KafkaNodePool;
import io.strimzi.api.kafka.model.topic.KafkaTopic;
import io.strimzi.api.kafka.model.user.KafkaUser;
import java.io.InputStream;
import java.util.Iterator;
import java.util.Map;

/**
 * Reads resources of Strimzi from standard input into the classes that its operators read them into, and prints each field
 * and value that these do not know. Status 1 if there is any.
 */
public class Check {
    private static final Map<String, Class<?>> KINDS = Map.of(
        "Kafka", Kafka.class, "KafkaNodePool", KafkaNodePool.class,
        "KafkaTopic", KafkaTopic.class, "KafkaUser", KafkaUser.class);
    private static boolean failed;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper yaml = new ObjectMapper(new YAMLFactory());
        try (InputStream in = System.in) {
            Iterator<JsonNode> documents = yaml.readerFor(JsonNode.class).readValues(in);
            while (documents.hasNext()) {
                JsonNode document = documents.next();
                String kind = document.path("kind").asText();
                String name = kind + "/" + document.path("metadata").path("name").asText();
                if (!KINDS.containsKey(kind)) {
                    fail(name + ": unknown kind");
                    continue;
                }
                try {
                    Object resource = yaml.treeToValue(document, KINDS.get(kind));
                    unknown(name, resource);
                    notRead(name, document, yaml.valueToTree(resource));
                    System.out.println(name + " read");
                } catch (Exception error) {
                    fail(name + ": " + error.getMessage());
                }
            }
        }
        System.exit(failed ? 1 : 0);
    }

    /** Strimzi's classes keep what they do not know in a map, at every level. */
    private static void unknown(String where, Object object) throws Exception {
        if (object == null) {
            return;
        }
        if (object instanceof Iterable<?> items) {
            int at = 0;
            for (Object item : items) {
                unknown(where + "[" + at++ + "]", item);
            }
            return;
        }
        if (!object.getClass().getName().startsWith("io.strimzi.")) {
            return;
        }
        for (var method : object.getClass().getMethods()) {
            boolean getter = method.getName().startsWith("get") && method.getParameterCount() == 0;
            if (!getter || method.getName().equals("getClass") || java.lang.reflect.Modifier.isStatic(method.getModifiers())) {
                continue;
            }
            Object value = method.invoke(object);
            if (method.getName().equals("getAdditionalProperties")) {
                for (Object key : ((Map<?, ?>) value).keySet()) {
                    fail(where + ": unknown field " + key);
                }
            } else {
                String field = method.getName().substring(3);
                unknown(where + "." + Character.toLowerCase(field.charAt(0)) + field.substring(1), value);
            }
        }
    }

    /** A value that is not one of an enumeration becomes nothing, without an error. */
    private static void notRead(String where, JsonNode given, JsonNode read) {
        if (read == null || read.isNull() || read.isMissingNode()) {
            fail(where + ": unknown value " + given);
        } else if (given.isObject()) {
            given.fields().forEachRemaining(
                field -> notRead(where + "." + field.getKey(), field.getValue(), read.get(field.getKey())));
        } else if (given.isArray()) {
            for (int at = 0; at < given.size(); at++) {
                notRead(where + "[" + at + "]", given.get(at), read.get(at));
            }
        }
    }

    private static void fail(String message) {
        System.out.println(message);
        failed = true;
    }
}
