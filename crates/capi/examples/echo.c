/* Two processes: the parent listens and sends, the child connects and sends everything back.
 *
 *   cargo build --release -p squall-capi
 *   cc -I crates/capi/include crates/capi/examples/echo.c -L target/release -Wl,-rpath,$PWD/target/release -lsquall_exs -o echo
 *   ./echo
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "squall_exs.h"

#define BYTES 1000000
#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static exs_event next(exs_qhandle queue) {
    exs_event event;
    CHECK(exs_qdequeue(queue, &event, 1, 20000) == 1);
    CHECK(event.error == 0);
    return event;
}

static int child(const char *address) {
    CHECK(exs_init("echo", "a secret of sixteen bytes") == 0);
    int s = exs_socket(EXS_STREAM);
    CHECK(s > 0 && exs_connect(s, address, 20000) == 0);
    exs_qhandle queue = exs_qcreate();
    char *ordinary = malloc(BYTES); /* memory of the program: transferred in place, or copied if it is not whole words */
    exs_mhandle handle = exs_mregister(ordinary, BYTES);
    for (int skip = 0; skip < 2; skip++) {
        size_t length = BYTES - 8 * skip;
        CHECK(exs_recv(s, handle, ordinary + skip, length, EXS_WAITALL, queue, NULL) == 0);
        CHECK(skip || (exs_mderegister(handle) == -1 && errno == EBUSY));
        exs_event event = next(queue);
        CHECK(event.type == EXS_EVT_RECV && event.bytes == length);
        CHECK(exs_send(s, handle, ordinary + skip, length, queue, ordinary) == 0);
        event = next(queue);
        CHECK(event.type == EXS_EVT_SEND && event.context == ordinary);
    }
    CHECK(exs_mderegister(handle) == 0 && exs_mderegister(handle) == -1);
    free(ordinary);
    CHECK(exs_shutdown(s) == 0 && exs_close(s) == 0);
    return 0;
}

int main(void) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t pid = fork(); /* before any call of the library, which starts threads */
    if (pid == 0) {
        char address[256];
        ssize_t length = read(pipes[0], address, sizeof address - 1);
        CHECK(length > 0);
        address[length] = 0;
        return child(address);
    }
    CHECK(exs_init("echo", "a secret of sixteen bytes") == 0);
    int listener = exs_socket(EXS_STREAM);
    CHECK(exs_bind(listener, "127.0.0.1:0") == 0 && exs_listen(listener) == 0);
    char address[256];
    CHECK(exs_getsockname(listener, address, sizeof address) == 0);
    CHECK(write(pipes[1], address, strlen(address)) > 0);
    int s = exs_accept(listener, 20000);
    CHECK(s > 0);
    exs_qhandle queue = exs_qcreate();
    exs_mhandle out_handle, in_handle; /* memory of the library: transferred without copies */
    unsigned char *out = exs_malloc(s, BYTES, &out_handle), *in = exs_malloc(s, BYTES, &in_handle);
    CHECK(out && in);
    for (int i = 0; i < BYTES; i++) out[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int round = 0; round < 2; round++) {
        size_t length = BYTES - 8 * round;
        memset(in, 0, BYTES);
        CHECK(exs_recv(s, in_handle, in, length, EXS_WAITALL, queue, in) == 0);
        CHECK(exs_send(s, out_handle, out, length, queue, out) == 0);
        int sent = 0, received = 0;
        while (!sent || !received) {
            exs_event event = next(queue);
            sent |= event.type == EXS_EVT_SEND && event.context == out && event.bytes == length;
            received |= event.type == EXS_EVT_RECV && event.context == in && event.bytes == length;
        }
        CHECK(memcmp(out, in, length) == 0);
    }
    CHECK(exs_send(s, out_handle, out + 4, 8, queue, NULL) == -1); /* not at a multiple of 8 */
    CHECK(exs_shutdown(s) == 0 && exs_close(s) == 0 && exs_close(listener) == 0 && exs_close(s) == -1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("%d bytes echoed\n", BYTES);
    return 0;
}
