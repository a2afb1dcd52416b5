import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.FragmentAssembler;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import io.aeron.protocol.DataHeaderFlyweight;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * Aeron IPC as a peer: one publisher and some subscribers on shared memory, each a process that polls; the media driver
 * runs in the publisher's process. The rate is that of the slowest subscriber, after a warm-up of a quarter.
 *
 * <p>use: AeronIpc throughput|latency SIZE MESSAGES SUBSCRIBERS
 */
public final class AeronIpc {
  private static final String CHANNEL = "aeron:ipc?term-length=16m";
  private static final int TO_SUBSCRIBERS = 10;
  private static final int BACK = 11;
  private static final int MTU_BYTES = 16384;
  private static final int FRAGMENTS_A_POLL = 256;
  /** The bytes that a core's cache takes at a time: subscribers read one of each. */
  private static final int LINE_BYTES = 64;
  /** Messages beyond the measured ones, so that no subscriber starves at the end. */
  private static final int SURPLUS = 4096;
  private static final String[] JVM_OPTIONS = {
    "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED", "-Xmx256m",
  };

  private final int size;
  private final long messages;
  private final int subscribers;
  private final String folder;

  private AeronIpc(String[] arguments) {
    size = Integer.parseInt(arguments[1]);
    messages = Long.parseLong(arguments[2]);
    subscribers = Integer.parseInt(arguments[3]);
    folder = arguments.length > 4 ? arguments[4] : "/dev/shm/aeron-peer-" + ProcessHandle.current().pid();
  }

  public static void main(String[] arguments) throws Exception {
    AeronIpc run = new AeronIpc(arguments);
    switch (arguments[0]) {
      case "throughput" -> run.throughput();
      case "latency" -> run.latency();
      case "subscriber" -> run.subscriber();
      case "echo" -> run.echo();
      default -> throw new IllegalArgumentException(arguments[0]);
    }
    System.exit(0);
  }

  private void throughput() throws Exception {
    try (MediaDriver driver = driver(); Aeron aeron = connect()) {
      ExclusivePublication publication = aeron.addExclusivePublication(CHANNEL, TO_SUBSCRIBERS);
      List<Process> children = new ArrayList<>();
      List<BufferedReader> outputs = new ArrayList<>();
      for (int i = 0; i < subscribers; i++) {
        children.add(child("subscriber"));
        outputs.add(new BufferedReader(new InputStreamReader(children.get(i).getInputStream())));
      }
      for (BufferedReader output : outputs) output.readLine();
      publish(publication, children);
      double slowest = 0;
      for (BufferedReader output : outputs) slowest = Math.max(slowest, Double.parseDouble(output.readLine()));
      System.out.printf(
          "{\"size\":%d,\"messages\":%d,\"messages_per_second\":%.0f}%n", size, messages, messages / slowest);
      for (Process child : children) child.waitFor();
    }
  }

  private void publish(ExclusivePublication publication, List<Process> children) {
    UnsafeBuffer buffer = new UnsafeBuffer(new byte[size]);
    byte[] source = new byte[size];
    Arrays.fill(source, (byte) 1);
    long total = messages + messages / 4 + SURPLUS;
    for (long i = 0; i < total; i++) {
      buffer.putBytes(0, source);
      int refused = 0;
      while (publication.offer(buffer, 0, size) < 0) {
        pause();
        if ((++refused & 0xffff) == 0 && children.stream().noneMatch(Process::isAlive)) return;
      }
    }
  }

  private void subscriber() {
    Subscription subscription = connect().addSubscription(CHANNEL, TO_SUBSCRIBERS);
    while (!subscription.isConnected()) Thread.yield();
    say("ready");
    long[] received = {0};
    long[] sum = {0};
    FragmentHandler each = (buffer, offset, length, header) -> {
      received[0]++;
      for (int place = 0; place < length; place += LINE_BYTES) sum[0] += buffer.getByte(offset + place);
    };
    // A longer message comes in several fragments.
    boolean isLong = size + DataHeaderFlyweight.HEADER_LENGTH > MTU_BYTES;
    FragmentHandler handler = isLong ? new FragmentAssembler(each, size) : each;
    long warmUp = messages / 4;
    while (received[0] < warmUp) if (subscription.poll(handler, FRAGMENTS_A_POLL) == 0) pause();
    long start = System.nanoTime();
    long first = received[0];
    while (received[0] < first + messages) if (subscription.poll(handler, FRAGMENTS_A_POLL) == 0) pause();
    double seconds = (System.nanoTime() - start) / 1e9;
    long lines = (size + LINE_BYTES - 1) / LINE_BYTES;
    if (sum[0] != lines * received[0]) throw new IllegalStateException("the payload is not what was published");
    say(Double.toString(seconds * messages / (received[0] - first)));
    while (received[0] < messages + warmUp + SURPLUS) if (subscription.poll(handler, FRAGMENTS_A_POLL) == 0) pause();
  }

  private void latency() throws Exception {
    try (MediaDriver driver = driver(); Aeron aeron = connect()) {
      ExclusivePublication publication = aeron.addExclusivePublication(CHANNEL, TO_SUBSCRIBERS);
      Subscription subscription = aeron.addSubscription(CHANNEL, BACK);
      Process child = child("echo");
      new BufferedReader(new InputStreamReader(child.getInputStream())).readLine();
      while (!publication.isConnected() || !subscription.isConnected()) Thread.yield();
      long[] received = {0};
      FragmentHandler handler = (buffer, offset, length, header) -> received[0]++;
      UnsafeBuffer buffer = new UnsafeBuffer(new byte[size]);
      long[] times = new long[(int) messages];
      for (int i = (int) (-messages / 2); i < messages; i++) {
        long before = received[0];
        long start = System.nanoTime();
        while (publication.offer(buffer, 0, size) < 0) Thread.onSpinWait();
        while (received[0] == before) if (subscription.poll(handler, 8) == 0) Thread.onSpinWait();
        if (i >= 0) times[i] = System.nanoTime() - start;
      }
      child.destroyForcibly().waitFor();
      Arrays.sort(times);
      System.out.printf(
          "{\"size\":%d,\"round_trip_ns\":{\"p50\":%d,\"p99\":%d}}%n",
          size, times[times.length / 2], times[(int) (times.length * 99L / 100)]);
    }
  }

  private void echo() {
    Aeron aeron = connect();
    ExclusivePublication publication = aeron.addExclusivePublication(CHANNEL, BACK);
    Subscription subscription = aeron.addSubscription(CHANNEL, TO_SUBSCRIBERS);
    FragmentHandler handler = (buffer, offset, length, header) -> {
      while (publication.offer(buffer, offset, length) < 0) Thread.onSpinWait();
    };
    say("ready");
    while (true) if (subscription.poll(handler, 8) == 0) Thread.onSpinWait();
  }

  private MediaDriver driver() {
    return MediaDriver.launch(
        new MediaDriver.Context()
            .aeronDirectoryName(folder)
            .threadingMode(ThreadingMode.SHARED)
            .sharedIdleStrategy(new BackoffIdleStrategy(1, 1, 1000, 20_000))
            .dirDeleteOnStart(true)
            .dirDeleteOnShutdown(true)
            .ipcTermBufferLength(16 << 20)
            .ipcMtuLength(MTU_BYTES));
  }

  private Aeron connect() {
    return Aeron.connect(new Aeron.Context().aeronDirectoryName(folder));
  }

  private Process child(String role) throws Exception {
    List<String> command = new ArrayList<>(List.of("java"));
    command.addAll(List.of(JVM_OPTIONS));
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), "AeronIpc", role));
    command.addAll(List.of("" + size, "" + messages, "" + subscribers, folder));
    return new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
  }

  private void pause() {
    if (subscribers > 1) Thread.yield();
    else Thread.onSpinWait();
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }
}
