//! A request of a C program that the system cannot satisfy is an error, and does not end the process.

use std::ffi::{CString, c_int, c_void};
use std::time::Duration;

use squall_exs::{
    exs_accept, exs_bind, exs_close, exs_connect, exs_getsockname, exs_init, exs_listen, exs_malloc,
    exs_mregister, exs_qcreate, exs_qdequeue, exs_recv, exs_send, exs_socket,
};

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Two connected sockets.
fn pair() -> (c_int, c_int) {
    let (name, secret) = (CString::new("limits").unwrap(), CString::new("at least sixteen bytes").unwrap());
    assert_eq!(exs_init(name.as_ptr(), secret.as_ptr()), 0);
    let (listener, address) = (exs_socket(1), CString::new("127.0.0.1:0").unwrap());
    assert_eq!((exs_bind(listener, address.as_ptr()), exs_listen(listener)), (0, 0));
    let mut text = [0; 100];
    // SAFETY: the memory has that length.
    assert_eq!(unsafe { exs_getsockname(listener, text.as_mut_ptr(), text.len()) }, 0);
    let near = exs_socket(1);
    let accepting = std::thread::spawn(move || exs_accept(listener, 20_000));
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(exs_connect(near, text.as_ptr(), 20_000), 0);
    (near, accepting.join().unwrap())
}

#[test]
fn absurd_requests_are_errors() {
    let (near, far) = pair();
    let mut handle = 0;
    for length in [1 << 60, usize::MAX, usize::MAX - 7] {
        // SAFETY: the handle is valid for a store.
        let start = unsafe { exs_malloc(near, length, &raw mut handle) };
        assert!(start.is_null() && errno() == libc::ENOMEM, "{length}: {}", errno());
    }
    // SAFETY: null is allowed, and refused.
    assert!(unsafe { exs_malloc(near, 8, std::ptr::null_mut()) }.is_null());
    assert_eq!(errno(), libc::EFAULT);
    let mut bytes = [0_u64; 4];
    let start = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!((exs_mregister(start, usize::MAX), errno()), (-1, libc::EFAULT));
    let (memory, queue) = (exs_mregister(start, 32), exs_qcreate());
    // SAFETY: no memory of that length is registered, so none is accessed.
    assert_eq!(unsafe { exs_send(near, memory, start, usize::MAX, queue, std::ptr::null_mut()) }, -1);
    assert_eq!(errno(), libc::EFAULT);
    // SAFETY: as above.
    assert_eq!(unsafe { exs_recv(near, memory, start, usize::MAX & !7, 0, queue, std::ptr::null_mut()) }, -1);
    // SAFETY: null is allowed, and refused.
    assert_eq!(unsafe { exs_qdequeue(queue, std::ptr::null_mut(), 1, 0) }, -1);
    // SAFETY: the handle is valid for a store.
    let memory = unsafe { exs_malloc(near, 100, &raw mut handle) };
    assert!(!memory.is_null(), "the process and the socket still work");
    assert_eq!((exs_close(near), exs_close(far)), (0, 0));
}
