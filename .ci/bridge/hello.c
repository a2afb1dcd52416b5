/* A program of CycloneDDS that the bridge is checked with: it writes or reads samples of two types, and prints what it reads.
 *
 * use: hello write|read msg|line TOPIC COUNT PEERS [PAUSE_MS]
 *
 * It begins when it has PEERS peers: a sample that is written before a reader is known does not come to that reader. One that writes ends
 * after COUNT samples, or when it is interrupted, and prints how many it has had confirmed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "HelloWorldData.h"
#include "dds/dds.h"

static void check(dds_return_t result, const char *what) {
  if (result < 0) fprintf(stderr, "%s: %s\n", what, dds_strretcode(-result)), exit(1);
}

static volatile sig_atomic_t is_interrupted;

static void interrupt(int number) { is_interrupted = number; }

static void await_peers(dds_entity_t endpoint, int writes, int count) {
  int found = 0;
  for (int attempt = 0; attempt < 2000; attempt++) {
    dds_instance_handle_t peers[1];
    found = writes ? dds_get_matched_subscriptions(endpoint, peers, 1) : dds_get_matched_publications(endpoint, peers, 1);
    check(found, "peers");
    if (found >= count) return;
    dds_sleepfor(DDS_MSECS(10));
  }
  fprintf(stderr, "%d peers within 20 s, and not %d\n", found, count), exit(1);
}

int main(int argc, char **argv) {
  if (argc != 6 && argc != 7) return fprintf(stderr, "use: hello write|read msg|line TOPIC COUNT PEERS [PAUSE_MS]\n"), 2;
  int writes = !strcmp(argv[1], "write"), is_line = !strcmp(argv[2], "line"), count = atoi(argv[4]);
  dds_entity_t participant = dds_create_participant(DDS_DOMAIN_DEFAULT, NULL, NULL);
  check(participant, "participant");
  const dds_topic_descriptor_t *type = is_line ? &HelloWorldData_Line_desc : &HelloWorldData_Msg_desc;
  dds_entity_t topic = dds_create_topic(participant, type, argv[3], NULL, NULL);
  check(topic, "topic");
  dds_qos_t *qos = dds_create_qos();
  dds_qset_reliability(qos, DDS_RELIABILITY_RELIABLE, DDS_SECS(10));
  dds_qset_history(qos, DDS_HISTORY_KEEP_ALL, 0);
  dds_entity_t endpoint =
      writes ? dds_create_writer(participant, topic, qos, NULL) : dds_create_reader(participant, topic, qos, NULL);
  check(endpoint, "endpoint");
  await_peers(endpoint, writes, atoi(argv[5]));
  printf("matched\n"), fflush(stdout);
  if (writes) {
    char text[64];
    int written = 0;
    signal(SIGINT, interrupt);
    for (int i = 0; i < count && !is_interrupted; i++, written++) {
      snprintf(text, sizeof text, "hello %d", i);
      HelloWorldData_Msg msg = {.userID = i % 3, .message = text};
      HelloWorldData_Line line = {.text = text};
      if (argc == 7) dds_sleepfor(DDS_MSECS(atoi(argv[6])));
      check(dds_write(endpoint, is_line ? (void *)&line : (void *)&msg), "write");
    }
    check(dds_wait_for_acks(endpoint, DDS_SECS(20)), "acknowledgments");
    printf("%d\n", written);
  }
  for (int got = 0, idle = 0; !writes && got < count && idle < 3000;) {
    void *sample[1] = {dds_alloc(is_line ? sizeof(HelloWorldData_Line) : sizeof(HelloWorldData_Msg))};
    dds_sample_info_t info;
    int taken = dds_take(endpoint, sample, &info, 1, 1);
    check(taken, "take");
    if (taken > 0 && info.valid_data) {
      if (is_line) printf("%s\n", ((HelloWorldData_Line *)sample[0])->text);
      else printf("%d %s\n", (int)((HelloWorldData_Msg *)sample[0])->userID, ((HelloWorldData_Msg *)sample[0])->message);
      fflush(stdout), got++, idle = 0;
    } else if (taken == 0) {
      dds_sleepfor(DDS_MSECS(10)), idle++;
    }
    dds_sample_free(sample[0], type, DDS_FREE_ALL);
  }
  dds_delete_qos(qos);
  dds_delete(participant);
  return 0;
}
