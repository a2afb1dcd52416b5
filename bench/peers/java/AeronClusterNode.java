import io.aeron.ExclusivePublication;
import io.aeron.Image;
import io.aeron.archive.Archive;
import io.aeron.archive.ArchiveThreadingMode;
import io.aeron.archive.client.AeronArchive;
import io.aeron.cluster.ClusteredMediaDriver;
import io.aeron.cluster.ConsensusModule;
import io.aeron.cluster.codecs.CloseReason;
import io.aeron.cluster.service.ClientSession;
import io.aeron.cluster.service.Cluster;
import io.aeron.cluster.service.ClusteredService;
import io.aeron.cluster.service.ClusteredServiceContainer;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.Header;
import java.io.File;
import java.util.function.Supplier;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.NoOpLock;
import org.agrona.concurrent.ShutdownSignalBarrier;

/**
 * Aeron Cluster as a peer: one member, whose service answers every message with its first bytes.
 *
 * <p>use: AeronClusterNode MEMBER MEMBERS FOLDER SYNC
 *
 * <p>SYNC is the level at which files are synchronised with the disk: 0 not, 1 the data, 2 the metadata, too.
 */
public final class AeronClusterNode implements ClusteredService {
  private static final int ANSWER_BYTES = 16;
  private static final int OFFERS_MAX = 100_000;
  /** Microseconds of sleep are what a cluster on two shared cores runs best with. */
  private static final Supplier<IdleStrategy> IDLE = () -> new BackoffIdleStrategy(10, 20, 1000, 50_000);

  private Cluster cluster;

  public static void main(String[] arguments) {
    int member = Integer.parseInt(arguments[0]);
    int members = Integer.parseInt(arguments[1]);
    File folder = new File(arguments[2], "node" + member);
    int sync = Integer.parseInt(arguments[3]);
    String aeron = "/dev/shm/aeron-cluster-peer-" + member;
    AeronArchive.Context client = archiveClient(aeron);
    try (ClusteredMediaDriver driver =
            ClusteredMediaDriver.launch(
                driver(aeron),
                archive(member, folder, aeron).fileSyncLevel(sync).catalogFileSyncLevel(sync),
                consensus(member, members, folder, aeron, client).fileSyncLevel(sync));
        ClusteredServiceContainer container = ClusteredServiceContainer.launch(service(folder, aeron, client))) {
      System.out.println("ready");
      System.out.flush();
      new ShutdownSignalBarrier().await();
    }
  }

  static String endpoint(int member, int offset) {
    return "127.0.0.1:" + (9000 + member * 100 + offset);
  }

  private static String everyone(int members) {
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < members; i++) {
      text.append(i);
      for (int offset : new int[] {2, 3, 4, 5, 1}) text.append(',').append(endpoint(i, offset));
      text.append('|');
    }
    return text.toString();
  }

  private static MediaDriver.Context driver(String aeron) {
    return new MediaDriver.Context()
        .aeronDirectoryName(aeron)
        .threadingMode(ThreadingMode.SHARED)
        .sharedIdleStrategy(IDLE.get())
        .termBufferSparseFile(true)
        .dirDeleteOnStart(true)
        .dirDeleteOnShutdown(true)
        .initialWindowLength(1 << 20)
        .socketRcvbufLength(2 << 20)
        .socketSndbufLength(2 << 20);
  }

  private static Archive.Context archive(int member, File folder, String aeron) {
    return new Archive.Context()
        .aeronDirectoryName(aeron)
        .archiveDir(new File(folder, "archive"))
        .controlChannel("aeron:udp?endpoint=" + endpoint(member, 1))
        .replicationChannel("aeron:udp?endpoint=127.0.0.1:0")
        .localControlChannel("aeron:ipc?term-length=64k")
        .recordingEventsEnabled(false)
        .threadingMode(ArchiveThreadingMode.SHARED)
        .idleStrategySupplier(IDLE)
        .deleteArchiveOnStart(true);
  }

  private static AeronArchive.Context archiveClient(String aeron) {
    return new AeronArchive.Context()
        .lock(NoOpLock.INSTANCE)
        .controlRequestChannel("aeron:ipc?term-length=64k")
        .controlResponseChannel("aeron:ipc?term-length=64k")
        .aeronDirectoryName(aeron);
  }

  private static ConsensusModule.Context consensus(
      int member, int members, File folder, String aeron, AeronArchive.Context client) {
    return new ConsensusModule.Context()
        .aeronDirectoryName(aeron)
        .clusterMemberId(member)
        .clusterMembers(everyone(members))
        .clusterDir(new File(folder, "cluster"))
        .ingressChannel("aeron:udp?term-length=4m")
        .logChannel("aeron:udp?term-length=16m|control-mode=manual|control=" + endpoint(member, 6))
        .replicationChannel("aeron:udp?endpoint=127.0.0.1:0")
        .archiveContext(client.clone())
        .idleStrategySupplier(IDLE)
        .deleteDirOnStart(true);
  }

  private static ClusteredServiceContainer.Context service(File folder, String aeron, AeronArchive.Context client) {
    return new ClusteredServiceContainer.Context()
        .aeronDirectoryName(aeron)
        .archiveContext(client.clone())
        .clusterDir(new File(folder, "cluster"))
        .clusteredService(new AeronClusterNode())
        .idleStrategySupplier(IDLE);
  }

  @Override
  public void onStart(Cluster started, Image snapshot) {
    cluster = started;
  }

  @Override
  public void onSessionMessage(
      ClientSession session, long time, DirectBuffer buffer, int offset, int length, Header header) {
    int answer = Math.max(ANSWER_BYTES, Math.min(length, ANSWER_BYTES));
    for (int i = 0; session.offer(buffer, offset, answer) < 0 && i < OFFERS_MAX; i++) cluster.idleStrategy().idle();
  }

  @Override
  public void onSessionOpen(ClientSession session, long time) {}

  @Override
  public void onSessionClose(ClientSession session, long time, CloseReason reason) {}

  @Override
  public void onTimerEvent(long timer, long time) {}

  @Override
  public void onTakeSnapshot(ExclusivePublication snapshot) {}

  @Override
  public void onRoleChange(Cluster.Role role) {}

  @Override
  public void onTerminate(Cluster ended) {}
}
