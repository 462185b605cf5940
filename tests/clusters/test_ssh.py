"""SSHCluster against an SSH server of this test: no root, no system user, keys of its own."""

import asyncio
import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from helpers.faulty import environment
from helpers.needs import need_package
from helpers.places import certificates, refused, same_labels, tls_section

from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT

pytestmark = pytest.mark.once
USER = "somebody"


async def _serve_command(process):
    """Run what was asked for in a shell, and end it with the connection."""
    child = await asyncio.create_subprocess_shell(
        process.command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={k: v for k, v in environment().items() if k not in WORKER_ENVIRONMENT},
        start_new_session=True,
    )
    # not `process.redirect`: it would go on sending output after the exit below, which ends the
    # whole connection
    outputs = [
        asyncio.ensure_future(_forward(child.stdout, process.stdout)),
        asyncio.ensure_future(_forward(child.stderr, process.stderr)),
    ]
    try:
        ended = [asyncio.ensure_future(child.wait()), asyncio.ensure_future(process.wait_closed())]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = await child.wait()
        await asyncio.wait(outputs, timeout=10)
    process.exit(max(code, 0))


async def _forward(source, sink):
    with suppress(BrokenPipeError):  # the client has gone
        while content := await source.read(1 << 16):
            sink.write(content.decode(errors="replace"))


@contextmanager
def ssh_server(folder):
    """A server on a free port of loopback, in a thread; yields the section `connect`."""
    import asyncssh

    folder.mkdir()
    ours, theirs, strange = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
    ours.write_private_key(folder / "client")
    ours.write_public_key(folder / "authorized")
    strange.write_private_key(folder / "strange")
    ours.write_private_key(folder / "locked", "pkcs8-pem", passphrase="secret")
    (folder / "broken").write_text("no key\n")
    loop = asyncio.new_event_loop()
    ready, port = threading.Event(), []

    async def serve():
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[theirs],
            authorized_client_keys=str(folder / "authorized"),
            process_factory=_serve_command,
        )
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        return server

    server = []
    thread = threading.Thread(target=_run_loop, args=(loop, serve, server))
    thread.start()
    assert ready.wait(20)
    for name, key in (("known_hosts", theirs), ("other_hosts", strange)):
        public = key.export_public_key().decode()
        (folder / name).write_text(f"[127.0.0.1]:{port[0]} {public}")
    try:
        yield folder, port[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _run_loop(loop, serve, server):
    asyncio.set_event_loop(loop)
    server.append(loop.run_until_complete(serve()))
    loop.run_forever()

    async def end():
        server[0].close()
        await server[0].wait_closed()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    loop.run_until_complete(end())
    loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    need_package("asyncssh", "pip install 'gmkcf-dask[cluster-tests]'")
    with ssh_server(tmp_path_factory.mktemp("ssh") / "server") as found:
        yield found


def config(server, more="", known="known_hosts", key="client", port=None):
    folder, listening = server
    return (
        "gmkcf:\n  kind: ssh\n  hosts: [127.0.0.1, 127.0.0.1]\n  workers: 2\n  memory: 1GiB\n"
        f"  connect: {{username: {USER}, port: {port or listening}, "
        f"known-hosts: {folder / known}, client-keys: [{folder / key}]}}\n{more}"
    )


@pytest.mark.parametrize("encrypted", [False, True], ids=["tcp", "tls"])
@pytest.mark.cluster
def test_the_same_labels(encrypted, server, tmp_path):
    more = f"  local-directory: {tmp_path / 'scratch'}\n  wait: 60s\n"
    if encrypted:
        more += f"  tls: {tls_section(certificates(tmp_path / 'tls'))}\n"
    file = tmp_path / "ssh.yaml"
    file.write_text(config(server, more))
    said = same_labels(tmp_path, file)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert f"on 2 workers at {'tls' if encrypted else 'tcp'}://127.0.0.1:" in said
    assert "Traceback" not in said


def test_workers_have_our_environment_and_the_settings_of_the_file(server, tmp_path):
    import dask
    from helpers.cluster_files import parse_config

    from gmkcf_dask.cluster.launch import start as start_config

    scratch = tmp_path / "scratch"
    more = f"  local-directory: {scratch}\ndistributed: {{worker: {{memory: {{spill: 0.55}}}}}}\n"
    text = config(server, more)
    text = text.replace("workers: 2", "workers: 1")

    def asked():
        found = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
        return found, dask.config.get("distributed.worker.memory.spill")

    found = parse_config(text.encode(), tmp_path / "ssh.yaml")
    with start_config(found, 10) as resources:
        assert resources.memory_per_worker == 1 << 30
        client = resources.runner.client
        (answer,) = client.run(asked).values()
        (spills,) = client.run(lambda dask_worker: dask_worker.local_directory).values()
        writes = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory)
        # one folder for this run, of which others see nothing
        (folder,) = scratch.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert spills.startswith(f"{folder}/")
        assert writes.startswith(f"{folder}/")
    assert answer == (WORKER_ENVIRONMENT, 0.55)
    assert list(scratch.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(server, tmp_path):
    (tmp_path / "file").touch()
    text = config(server, f"  local-directory: {tmp_path / 'file'}\n")
    sentence = refused(tmp_path, text, code=2)
    assert "no private folder can be made on 127.0.0.1" in sentence


def test_a_host_key_that_is_not_known(server, tmp_path):
    sentence = refused(tmp_path, config(server, known="other_hosts"), code=2)
    assert "the host key of 127.0.0.1 is not the one in" in sentence


def test_no_file_with_host_keys(server, tmp_path):
    text = config(server, known="no_hosts")
    assert "with the keys of the hosts: log in" in refused(tmp_path, text, code=2)


def test_a_key_that_is_not_let_in(server, tmp_path):
    sentence = refused(tmp_path, config(server, key="strange"), code=2)
    assert "cannot log in to 127.0.0.1 by ssh (Permission denied" in sentence


@pytest.mark.parametrize("key", ["locked", "broken"])
def test_a_key_that_cannot_be_used(key, server, tmp_path):
    sentence = refused(tmp_path, config(server, key=key), code=2)
    assert "a key of connect.client-keys cannot be used (" in sentence
    assert "let an agent have it (ssh-add)" in sentence


def test_a_host_that_does_not_answer(server, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        text = config(server, port=probe.getsockname()[1])
        assert "cannot log in to 127.0.0.1 by ssh (" in refused(tmp_path, text, code=2)


def test_an_interpreter_that_is_not_there(server, tmp_path):
    text = config(server, "  python: /no/such/python\n")
    sentence = refused(tmp_path, text, code=2)
    assert "/no/such/python on 127.0.0.1 cannot import gmkcf_dask" in sentence


def test_hosts_elsewhere_in_the_open(server, tmp_path):
    text = config(server).replace("hosts: [127.0.0.1,", "hosts: [node1,")
    assert "listens on the network" in refused(tmp_path, text, code=2)


@pytest.mark.parametrize("word", ["/bin/sh -c ls", "python;ls", "$(ls)", "a'b"])
def test_words_for_a_shell_stay_words(word, server, tmp_path):
    text = config(server, f'  python: "{word}"\n')
    assert "gmkcf.python must be a name or path" in refused(tmp_path, text, code=2)
