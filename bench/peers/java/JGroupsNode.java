import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.protocols.FRAG4;
import org.jgroups.protocols.MERGE3;
import org.jgroups.protocols.MFC;
import org.jgroups.protocols.SEQUENCER;
import org.jgroups.protocols.TCP;
import org.jgroups.protocols.TCPPING;
import org.jgroups.protocols.UFC;
import org.jgroups.protocols.UNICAST3;
import org.jgroups.protocols.VERIFY_SUSPECT2;
import org.jgroups.protocols.pbcast.GMS;
import org.jgroups.protocols.pbcast.NAKACK2;
import org.jgroups.protocols.pbcast.STABLE;
import org.jgroups.stack.Protocol;

/**
 * JGroups as a peer: one member of a group on TCP whose messages a sequencer orders. Not uniform: a member may deliver
 * what the others never receive.
 *
 * <p>use: JGroupsNode MEMBER MEMBERS receive|send SIZE SECONDS WINDOW
 */
public final class JGroupsNode implements Receiver {
  private static final int PORT = 7800;
  private static final double WARM_UP_SECONDS = 2;
  private static final int SAMPLES_MAX = 2_000_000;

  private final JChannel channel;
  private final AtomicLong delivered = new AtomicLong();
  private final AtomicLong deliveredOwn = new AtomicLong();
  private final long[] times = new long[SAMPLES_MAX];
  private final AtomicInteger samples = new AtomicInteger();

  private JGroupsNode(int member, int members) throws Exception {
    channel = new JChannel(stack(member, members)).name("n" + member);
    channel.setReceiver(this);
    channel.connect("peer");
  }

  public static void main(String[] arguments) throws Exception {
    int members = Integer.parseInt(arguments[1]);
    JGroupsNode node = new JGroupsNode(Integer.parseInt(arguments[0]), members);
    System.out.println("ready");
    System.out.flush();
    if (arguments[2].equals("receive")) {
      Thread.sleep(Long.MAX_VALUE);
    }
    while (node.channel.getView().size() < members) Thread.sleep(20);
    Thread.sleep(300);
    int size = Integer.parseInt(arguments[3]);
    int window = Integer.parseInt(arguments[5]);
    node.run(size, WARM_UP_SECONDS, window);
    System.out.println(node.run(size, Double.parseDouble(arguments[4]), window));
    System.exit(0);
  }

  @Override
  public void receive(Message message) {
    delivered.incrementAndGet();
    if (!message.getSrc().equals(channel.getAddress())) return;
    deliveredOwn.incrementAndGet();
    int sample = samples.getAndIncrement();
    if (sample < SAMPLES_MAX) times[sample] = System.nanoTime() - time(message.getArray(), message.getOffset());
  }

  /** Sends for some seconds with a window of own messages under way, and returns the figures as JSON. */
  private String run(int size, double seconds, int window) throws Exception {
    long ownBefore = deliveredOwn.get();
    long before = delivered.get();
    long sent = 0;
    samples.set(0);
    long start = System.nanoTime();
    long end = start + (long) (seconds * 1e9);
    while (System.nanoTime() < end) {
      if (sent - (deliveredOwn.get() - ownBefore) < window) {
        channel.send(new BytesMessage(null, stamped(size)));
        sent++;
      } else {
        Thread.yield();
      }
    }
    double rate = (delivered.get() - before) / ((System.nanoTime() - start) / 1e9);
    long patience = System.nanoTime() + 3_000_000_000L;
    while (deliveredOwn.get() - ownBefore < sent && System.nanoTime() < patience) Thread.yield();
    long[] sorted = Arrays.copyOf(times, Math.min(samples.get(), SAMPLES_MAX));
    Arrays.sort(sorted);
    return String.format(
        "{\"size\":%d,\"messages_per_second\":%.0f,\"latency_ns\":{\"p50\":%d,\"p99\":%d}}",
        size, rate, sorted[sorted.length / 2], sorted[(int) (sorted.length * 99L / 100)]);
  }

  private static byte[] stamped(int size) {
    byte[] bytes = new byte[Math.max(size, Long.BYTES)];
    long time = System.nanoTime();
    for (int i = Long.BYTES - 1; i >= 0; i--, time >>= Byte.SIZE) bytes[i] = (byte) time;
    return bytes;
  }

  private static long time(byte[] bytes, int offset) {
    long time = 0;
    for (int i = 0; i < Long.BYTES; i++) time = time << Byte.SIZE | (bytes[offset + i] & 0xff);
    return time;
  }

  private static List<Protocol> stack(int member, int members) throws Exception {
    List<InetSocketAddress> hosts = new ArrayList<>();
    for (int i = 0; i < members; i++) hosts.add(new InetSocketAddress("127.0.0.1", PORT + i));
    TCP tcp = new TCP();
    tcp.setBindAddress(InetAddress.getByName("127.0.0.1"));
    tcp.setBindPort(PORT + member);
    tcp.setPortRange(0);
    TCPPING discovery = new TCPPING();
    discovery.setInitialHosts(hosts);
    discovery.setPortRange(0);
    return List.of(
        tcp,
        discovery,
        new MERGE3(),
        new VERIFY_SUSPECT2(),
        new NAKACK2().useMcastXmit(false),
        new UNICAST3(),
        new STABLE().setDesiredAverageGossip(50_000).setMaxBytes(8_000_000),
        new GMS().setJoinTimeout(1000),
        new UFC(),
        new MFC().setMaxCredits(8_000_000),
        new FRAG4(),
        new SEQUENCER());
  }
}
