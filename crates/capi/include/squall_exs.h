/* Streams of Squall for C, in the manner of the Open Group's Extended Sockets API (ES-API): operations are posted with
 * a queue and a context, and their completions are taken from the queue.
 *
 * What differs from ES-API: addresses are text ("host:port", "unix:@name"); both ends prove a secret; connecting and
 * accepting block; memory of exs_malloc and of exs_mregister moves without copies of the library, but what does not begin
 * and end at addresses that are multiples of 8 in memory of exs_mregister is copied once by the library. Functions return -1
 * and set errno, unless they say otherwise. All may be called from any thread; one call works at a time, so a call that
 * waits should have a timeout. */
#ifndef SQUALL_EXS_H
#define SQUALL_EXS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EXS_STREAM 1    /* a stream of bytes */
#define EXS_SEQPACKET 2 /* messages with boundaries */

#define EXS_WAITALL 1 /* exs_recv: complete only when all bytes are there */

#define EXS_EVT_SEND 1
#define EXS_EVT_RECV 2
#define EXS_EVT_CLOSED 3 /* the connection is over; error says why, 0: in order */

typedef struct exs_event {
    int socket;
    int type;     /* EXS_EVT_... */
    int error;    /* 0, or a number of errno */
    int end;      /* of a receive: the peer has ended its stream */
    size_t bytes; /* that were sent or received */
    void *context;
} exs_event;

typedef int exs_qhandle;
typedef int64_t exs_mhandle;

/* Both ends give the same name and secret (at least 16 bytes). Once, before all else. */
int exs_init(const char *name, const char *secret);

int exs_socket(int type);                       /* a socket, above 0 */
int exs_bind(int socket, const char *address);  /* port 0: a free one; see exs_getsockname */
int exs_listen(int socket);
int exs_getsockname(int socket, char *address, size_t length);
int exs_accept(int socket, int timeout_ms);     /* a socket; timeout_ms < 0: for ever */
int exs_connect(int socket, const char *address, int timeout_ms);
int exs_shutdown(int socket);                   /* sends nothing more after what is posted */
int exs_close(int socket);                      /* waits a little for the peer to take what was sent */

/* Memory of the library for one socket. NULL and errno on failure (ENOMEM: the system does not give it). Freed with the
 * socket. */
void *exs_malloc(int socket, size_t length, exs_mhandle *handle);
/* Memory of the caller, for all sockets, which stays valid until exs_mderegister. A peer for which exs_recv has named a part
 * of it may write to all of it: keep apart what it must not touch. Between processes of one host the
 * receiver's library reads the sender's memory, when the receiver calls exs_qdequeue; where the kernel does not let it, there
 * is one more copy. EBUSY from exs_mderegister: an operation on the memory is outstanding, and nothing has changed; else
 * nobody touches the memory any more when it returns. */
exs_mhandle exs_mregister(void *address, size_t length);
int exs_mderegister(exs_mhandle handle);

exs_qhandle exs_qcreate(void);
int exs_qdelete(exs_qhandle queue);
/* Takes up to `count` events; waits for the first for up to timeout_ms (< 0: for ever). The number taken. */
int exs_qdequeue(exs_qhandle queue, exs_event *events, int count, int timeout_ms);

/* The memory belongs to the library until the event. In memory of exs_malloc, `address` is at a multiple of 8 bytes from
 * its beginning. Bytes of a receive behind the last one that came, up to the next multiple of 8, may become zeros. */
int exs_send(int socket, exs_mhandle handle, const void *address, size_t length, exs_qhandle queue, void *context);
int exs_recv(int socket, exs_mhandle handle, void *address, size_t length, int flags, exs_qhandle queue, void *context);

#ifdef __cplusplus
}
#endif
#endif
