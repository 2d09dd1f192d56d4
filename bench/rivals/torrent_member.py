"""One peer of libtorrent: member 0 has a file, the others want it.

Everybody is told of everybody directly, so no time goes into finding peers. No rate is limited and nobody is choked;
encryption is off (it has no peer keys to check, and pieces are checked by their hashes in any case). `ended` is when
every piece is there and checked.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from hashlib import sha256
from pathlib import Path

import libtorrent  # type: ignore[import-not-found]
from bench.rivals import member

PORT = 6881
LOOK_S = 0.01
WAIT_S_MAX = 120.0
PIECE_BYTES = 2**18
CHUNK_BYTES = 2**20
NAME = "file"
SMALL_SWARM = {"request_queue_time": 1, "initial_picker_threshold": 0, "whole_pieces_threshold": 0}
"""Ask for little ahead, the rarest first from the first piece on, and never for whole pieces of one peer: then fresh
peers ask the one source less often for the same. Best of some thirty combinations; super-seeding made it slower."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-bytes", type=int, required=True)
    parser.add_argument("--defaults", action="store_true", help="change nothing of how peers ask for pieces")
    parser.add_argument("--folder", type=Path, required=True, help="where the torrent and everybody's copy are kept")
    options = parser.parse_args()
    here = member.place()
    own = options.folder / str(here.index)
    own.mkdir()
    described = options.folder / "described.torrent"
    if here.index == 0:
        _describe(_made(own / NAME, options.size_bytes), described)
    session = libtorrent.session(_settings(here) | ({} if options.defaults else SMALL_SWARM))
    handle = _added(session, own, described, seeding=here.index == 0)
    member.ready()
    for _ in sys.stdin:
        _spread(here, handle, own / NAME)


def _settings(here: member.Place) -> dict[str, object]:
    """Return what suits a few peers that all want to help each other."""
    off = ("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp", "enable_outgoing_utp", "enable_incoming_utp")
    return {
        **dict.fromkeys(off, False),
        "listen_interfaces": f"{here.ip}:{PORT}",
        "in_enc_policy": int(libtorrent.enc_policy.disabled),
        "out_enc_policy": int(libtorrent.enc_policy.disabled),
        "unchoke_slots_limit": -1,
        "connections_limit": 1000,
        "alert_mask": 0,
    }


def _made(path: Path, size_bytes: int) -> Path:
    """Fill a file with noise."""
    with path.open("wb") as file:
        for start in range(0, size_bytes, CHUNK_BYTES):
            file.write(os.urandom(min(CHUNK_BYTES, size_bytes - start)))
    return path


def _describe(path: Path, described: Path) -> None:
    """Make the torrent of a file, seen whole or not at all."""
    torrent = libtorrent.create_torrent(libtorrent.list_files(str(path)), PIECE_BYTES)
    libtorrent.set_piece_hashes(torrent, str(path.parent))
    draft = described.with_suffix(".new")
    draft.write_bytes(libtorrent.bencode(torrent.generate()))
    draft.rename(described)


def _added(session: libtorrent.session, own: Path, described: Path, *, seeding: bool) -> libtorrent.torrent_handle:
    """Return the torrent, ready to go, once it is described."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not described.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    wanted = libtorrent.add_torrent_params()
    wanted.ti = libtorrent.torrent_info(str(described))
    wanted.save_path = str(own)
    wanted.flags = libtorrent.torrent_flags.seed_mode if seeding else libtorrent.torrent_flags.update_subscribe
    return session.add_torrent(wanted)


def _spread(here: member.Place, handle: libtorrent.torrent_handle, path: Path) -> None:
    """Take part until the file is here, and say when it was."""
    began_s = time.time()
    for index, ip in enumerate(here.ips):
        if index != here.index:
            handle.connect_peer((ip, PORT))
    while not handle.status().is_seeding:
        time.sleep(LOOK_S)
    took_s, cpu_s = time.time() - began_s, member.cpu_s()
    handle.flush_cache()
    digest = sha256(path.read_bytes()).hexdigest()[:16]
    member.say(round=1, began_s=began_s, took_s=took_s, ok=True, members=here.count, digest=digest, cpu_s=cpu_s)


if __name__ == "__main__":
    main()
