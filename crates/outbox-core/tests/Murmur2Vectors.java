import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/**
 * Writes murmur2_vectors.txt: key in hex, Kafka's hash of it, and its partition of 1, 3, 15 and 1000.
 * Made with kafka-clients 4.1.1:
 *   java -cp 'lib/*' Murmur2Vectors.java > murmur2_vectors.txt
 */
public class Murmur2Vectors {
    public static void main(String[] args) {
        List<byte[]> keys = new ArrayList<>();
        for (String text : new String[] {"", "a", "1", "21", "foobar", "a-little-bit-long-string",
                "a-little-bit-longer-string", "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                "0", "order-1", "b0a4f3f0-6f9c-7d6e-8a51-000000000001", "Zürich", "é", "日本語", "🦀", "\u0000"}) {
            keys.add(text.getBytes(StandardCharsets.UTF_8));
        }
        Random random = new Random(1);
        for (int length = 1; length <= 9; length++) {
            for (int round = 0; round < 4; round++) {
                byte[] key = new byte[length];
                random.nextBytes(key);
                keys.add(key);
            }
        }
        for (int length : new int[] {36, 255, 1024}) {
            byte[] key = new byte[length];
            random.nextBytes(key);
            keys.add(key);
        }
        for (byte[] key : keys) {
            System.out.print("x" + HexFormat.of().formatHex(key) + " " + Integer.toUnsignedString(Utils.murmur2(key)));
            for (int partitions : new int[] {1, 3, 15, 1000}) {
                System.out.print(" " + BuiltInPartitioner.partitionForKey(key, partitions));
            }
            System.out.println();
        }
    }
}
