"""A proxy on the loopback that adds a delay to every request, and counts requests in flight.

    python delaying_proxy.py PORT    prints its own port, serves PORT until its input ends

GET /_delay?MILLISECONDS sets the delay; GET /_seen answers how many requests there were since the
last time, and how many of them at once.
"""

import asyncio
import json
import sys

MOST_CONNECTIONS = 512
PIECE = 1 << 18
SECONDS = 1800  # it ends by itself after that


class Proxy:
    """Forwards connections; a request begins where the client sends after the server did."""

    def __init__(self, port):
        self.port, self.delay = port, 0.0
        self.connections = self.in_flight = self.most = self.requests = 0

    async def connected(self, reader, writer):
        self.connections += 1
        try:
            if self.connections <= MOST_CONNECTIONS:
                await self.serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def serve(self, reader, writer):
        first = await reader.read(PIECE)
        if not first:
            return
        if first.startswith((b"GET /_delay?", b"GET /_seen")):
            writer.write(self.told(first.split()[1].decode()))
            await writer.drain()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.port)
        link = Link(self)
        pumps = [
            asyncio.create_task(link.requests(first, reader, server_writer)),
            asyncio.create_task(link.answers(server_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            link.answered()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            server_writer.close()

    def told(self, asked):
        said = b""
        if asked.startswith("/_delay?"):
            self.delay = float(asked.partition("?")[2]) / 1000
        else:
            said = json.dumps({"requests": self.requests, "at_once": self.most}).encode()
            self.requests, self.most = 0, self.in_flight
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\nConnection: close\r\n\r\n"
        return head.encode() + said


class Link:
    """One connection of a client."""

    def __init__(self, proxy):
        self.proxy, self.waits = proxy, False

    async def requests(self, piece, reader, writer):
        while piece:
            if not self.waits:
                self.waits = True
                self.proxy.requests += 1
                self.proxy.in_flight += 1
                self.proxy.most = max(self.proxy.most, self.proxy.in_flight)
                await asyncio.sleep(self.proxy.delay)
            writer.write(piece)
            await writer.drain()
            piece = await reader.read(PIECE)

    async def answers(self, reader, writer):
        while piece := await reader.read(PIECE):
            self.answered()
            writer.write(piece)
            await writer.drain()

    def answered(self):
        self.proxy.in_flight -= self.waits
        self.waits = False


async def main(port):
    server = await asyncio.start_server(Proxy(port).connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with server:
        await asyncio.wait([ended], timeout=SECONDS)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
