import io.aeron.cluster.client.AeronCluster;
import io.aeron.cluster.client.EgressListener;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.Header;
import java.util.Arrays;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;
import org.agrona.concurrent.YieldingIdleStrategy;

/**
 * A client of the Aeron Cluster peer: keeps a window of messages under way and counts the answers, each of which says
 * that a majority has the message.
 *
 * <p>use: AeronClusterClient MEMBERS SIZE SECONDS WINDOW
 */
public final class AeronClusterClient implements EgressListener {
  private static final String FOLDER = "/dev/shm/aeron-cluster-peer-client";
  private static final double WARM_UP_SECONDS = 2;
  private static final int SAMPLES_MAX = 4_000_000;

  private final long[] times = new long[SAMPLES_MAX];
  private int samples;
  private long answers;

  @Override
  public void onMessage(long session, long time, DirectBuffer buffer, int offset, int length, Header header) {
    answers++;
    if (samples < SAMPLES_MAX) times[samples++] = System.nanoTime() - buffer.getLong(offset);
  }

  public static void main(String[] arguments) {
    int members = Integer.parseInt(arguments[0]);
    int size = Integer.parseInt(arguments[1]);
    double seconds = Double.parseDouble(arguments[2]);
    int window = Integer.parseInt(arguments[3]);
    AeronClusterClient client = new AeronClusterClient();
    try (MediaDriver driver = driver();
        AeronCluster cluster = client.connect(members)) {
      client.run(cluster, size, WARM_UP_SECONDS, window);
      System.out.println(client.run(cluster, size, seconds, window));
    }
    System.exit(0);
  }

  /** Sends for some seconds, waits for what is under way, and returns the figures as JSON. */
  private String run(AeronCluster cluster, int size, double seconds, int window) {
    UnsafeBuffer buffer = new UnsafeBuffer(new byte[size]);
    IdleStrategy idle = new YieldingIdleStrategy();
    long before = answers;
    long sent = 0;
    samples = 0;
    long start = System.nanoTime();
    long end = start + (long) (seconds * 1e9);
    while (System.nanoTime() < end) {
      int work = 0;
      if (sent - (answers - before) < window) {
        buffer.putLong(0, System.nanoTime());
        if (cluster.offer(buffer, 0, size) > 0) {
          sent++;
          work++;
        }
      }
      idle.idle(work + cluster.pollEgress());
    }
    double rate = (answers - before) / ((System.nanoTime() - start) / 1e9);
    long patience = System.nanoTime() + 3_000_000_000L;
    while (answers - before < sent && System.nanoTime() < patience) idle.idle(cluster.pollEgress());
    if (samples == 0) throw new IllegalStateException("no answer");
    long[] sorted = Arrays.copyOf(times, samples);
    Arrays.sort(sorted);
    return String.format(
        "{\"size\":%d,\"messages_per_second\":%.0f,\"latency_ns\":{\"p50\":%d,\"p99\":%d}}",
        size, rate, sorted[sorted.length / 2], sorted[(int) (sorted.length * 99L / 100)]);
  }

  private AeronCluster connect(int members) {
    StringBuilder endpoints = new StringBuilder();
    for (int i = 0; i < members; i++) {
      endpoints.append(i == 0 ? "" : ",").append(i).append('=').append(AeronClusterNode.endpoint(i, 2));
    }
    return AeronCluster.connect(
        new AeronCluster.Context()
            .egressListener(this)
            .egressChannel("aeron:udp?endpoint=127.0.0.1:0|term-length=4m")
            .ingressChannel("aeron:udp?term-length=4m")
            .ingressEndpoints(endpoints.toString())
            .aeronDirectoryName(FOLDER)
            .messageTimeoutNs(20_000_000_000L));
  }

  private static MediaDriver driver() {
    return MediaDriver.launch(
        new MediaDriver.Context()
            .aeronDirectoryName(FOLDER)
            .threadingMode(ThreadingMode.SHARED)
            .sharedIdleStrategy(new BackoffIdleStrategy(10, 20, 1000, 50_000))
            .dirDeleteOnStart(true)
            .dirDeleteOnShutdown(true)
            .initialWindowLength(1 << 20)
            .socketRcvbufLength(2 << 20)
            .socketSndbufLength(2 << 20));
  }
}
