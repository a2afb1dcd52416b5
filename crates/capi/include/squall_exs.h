/* Streams of Squall for C, in the manner of the Open Group's Extended Sockets API (ES-API): operations are posted with
 * a queue and a context, and their completions are taken from the queue.
 *
 * Differences from ES-API: addresses are text ("host:port", "unix:@name"); both ends prove that they know a secret;
 * connecting and accepting block; memory of exs_malloc and of exs_mregister is transferred without copies by the library,
 * but a range in memory of exs_mregister that does not begin and end at multiples of 8 is copied once. Unless stated
 * otherwise, functions return -1 on failure and set errno. All functions may be called from any thread; they share one
 * lock, so a call that waits should have a timeout. */
#ifndef SQUALL_EXS_H
#define SQUALL_EXS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EXS_STREAM 1    /* a stream of bytes */
#define EXS_SEQPACKET 2 /* messages with boundaries */

#define EXS_WAITALL 1 /* exs_recv: complete only when all bytes have arrived */

#define EXS_EVT_SEND 1
#define EXS_EVT_RECV 2
#define EXS_EVT_CLOSED 3 /* the connection has ended; error is the reason, 0 for an orderly end */

typedef struct exs_event {
    int socket;
    int type;     /* EXS_EVT_... */
    int error;    /* 0, or an errno value */
    int end;      /* of a receive: the peer has ended its stream */
    size_t bytes; /* bytes sent or received */
    void *context;
} exs_event;

typedef int exs_qhandle;
typedef int64_t exs_mhandle;

/* Sets the name and the secret (at least 16 bytes), which must be equal at both ends. Call it once, before all else. */
int exs_init(const char *name, const char *secret);

int exs_socket(int type);                       /* returns a socket, above 0 */
int exs_bind(int socket, const char *address);  /* port 0 chooses a free port; see exs_getsockname */
int exs_listen(int socket);
int exs_getsockname(int socket, char *address, size_t length);
int exs_accept(int socket, int timeout_ms);     /* returns a socket; timeout_ms < 0: no timeout */
int exs_connect(int socket, const char *address, int timeout_ms);
int exs_shutdown(int socket);                   /* ends the stream after the posted sends */
int exs_close(int socket);                      /* waits briefly for the peer to receive what was sent */

/* Allocates memory of the library for one socket, which is freed with the socket. Returns NULL and sets errno on failure
 * (ENOMEM if the system has no memory for it). */
void *exs_malloc(int socket, size_t length, exs_mhandle *handle);
/* Registers memory of the caller for all sockets; it must remain valid until exs_mderegister. If exs_recv names a part of
 * it, the peer may write to all of it, so keep memory that the peer must not change separate. Between processes on one
 * host, the receiver's library reads the sender's memory when the receiver calls exs_qdequeue; if the kernel does not
 * allow that, there is one more copy. exs_mderegister fails with EBUSY, and changes nothing, while an operation on the
 * memory is outstanding; otherwise the library no longer accesses the memory when it returns. */
exs_mhandle exs_mregister(void *address, size_t length);
int exs_mderegister(exs_mhandle handle);

exs_qhandle exs_qcreate(void);
int exs_qdelete(exs_qhandle queue);
/* Takes up to `count` events and waits for the first for up to timeout_ms (< 0: no timeout). Returns their number. */
int exs_qdequeue(exs_qhandle queue, exs_event *events, int count, int timeout_ms);

/* Post a send or a receive. The memory belongs to the library until the event. In memory of exs_malloc, `address` must be
 * at a multiple of 8 bytes from its beginning. Bytes of a receive after the last one that arrived, up to the next multiple
 * of 8, may become zeros. */
int exs_send(int socket, exs_mhandle handle, const void *address, size_t length, exs_qhandle queue, void *context);
int exs_recv(int socket, exs_mhandle handle, void *address, size_t length, int flags, exs_qhandle queue, void *context);

#ifdef __cplusplus
}
#endif
#endif
