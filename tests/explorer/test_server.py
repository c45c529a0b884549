"""The explorer's server, asked over real HTTP: what it answers, and whom it refuses."""

import http.client
import json
import re
import socket
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest

from bitmosaic.errors import FileFormatError, ParameterError
from bitmosaic.explorer.duplicates import duplicates_of
from bitmosaic.explorer.kept import _fingerprint
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.server import listen
from bitmosaic.images import quiet
from explored import HOSTILE, serving


def ask(url, path, method="GET", body=None, **headers):
    """Status, headers and body of one answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def get(url, path):
    status, _, body = ask(url, path)
    assert status == 200, body
    return json.loads(body)


def token(url):
    return re.search(r'name="token" content="([^"]+)"', ask(url, "/")[2].decode())[1]


def post(url, edit, version=0, **headers):
    headers = {"X-Bitmosaic-Token": token(url), "Content-Type": "application/json"} | headers
    status, _, body = ask(url, "/api/edits", "POST", json.dumps({"edit": edit, "version": version}), **headers)
    return status, json.loads(body)


def test_the_run_is_told_with_its_scores_and_weights(run, url):
    facts = get(url, "/api/run")
    assert (facts["images"], facts["clusters"], facts["bits"], facts["name"]) == (120, 3, 128, "run")
    assert facts["scores"] == pytest.approx(run.manifest["scores"])
    assert [view["name"] for view in facts["views"]] == ["hog", "ch"]
    assert facts["pictures"] is True
    assert facts["edits"] == {"version": 0, "count": 0, "last": None, "log": []}


def test_clusters_come_with_their_most_central_pictures(run, url):
    clusters = get(url, "/api/clusters")["clusters"]
    assert [cluster["size"] for cluster in clusters] == [40, 40, 40]
    distances = run.column("distances")
    for cluster in clusters:
        members = np.flatnonzero(run.column("labels") == cluster["number"])
        assert distances[cluster["central"]].max() <= np.sort(distances[members])[7]


def test_a_gallery_is_read_in_parts_that_join(url):
    whole = get(url, "/api/cluster/1/rows?start=0&count=300")
    parts = [get(url, f"/api/cluster/1/rows?start={start}&count=15") for start in (0, 15, 30)]
    assert [row for part in parts for row in part["rows"]] == whole["rows"]
    assert whole["total"] == 40
    assert whole["distances"] == sorted(whole["distances"])


def test_a_cluster_tells_its_nearest_and_its_histogram(url):
    cluster = get(url, "/api/cluster/2")
    assert {near["number"] for near in cluster["nearest"]} == {0, 1}
    assert sum(cluster["histogram"]["counts"]) == 40
    assert cluster["labels"][0]["count"] == 40
    assert len(get(url, "/api/cluster/2/views")["views"]) == 2


def test_a_picture_tells_its_code_and_its_neighbours_are_the_nearest_codes(run, url):
    picture = get(url, "/api/picture/60")
    assert bytes.fromhex(picture["code"]) == run.column("codes")[60].tobytes()
    assert picture["clusters"][0]["number"] == picture["cluster"]
    found = get(url, "/api/picture/60/neighbours?count=10")
    distances = np.bitwise_count(run.column("codes") ^ run.column("codes")[60]).sum(1)
    distances[60] = 999
    assert found["rows"] == np.argsort(distances, kind="stable")[:10].tolist()
    assert found["distances"] == np.sort(distances)[:10].tolist()


def test_pictures_are_found_by_a_part_of_their_name(run, url):
    found = get(url, "/api/search?q=NOISE%2F0012")["pictures"]
    assert found["paths"] == ["noise/0012.png"]
    assert found["rows"] == [run.paths.index("noise/0012.png")]
    found = get(url, f"/api/search?q={quote(HOSTILE[0])}")["pictures"]
    assert found["paths"] == [f"stripes/{HOSTILE[0]}"]
    assert get(url, "/api/search?q=nothing")["pictures"]["rows"] == []
    many = get(url, "/api/search?q=png")["pictures"]
    assert (len(many["rows"]), many["more"]) == (60, True)


def test_thumbnails_and_pictures_are_jpegs_that_may_be_kept(url):
    for path in ("/thumb/3", "/image/3"):
        status, headers, body = ask(url, path)
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        assert body.startswith(b"\xff\xd8")
        assert "immutable" in headers["cache-control"]


def test_merge_undo_and_a_table_that_follows(run, url):
    labels = (run.folder / "labels.npy").read_bytes()
    status, answer = post(url, {"do": "merge", "clusters": [0, 1], "into": 0})
    assert (status, answer["message"]) == (200, "cluster 1 merged into cluster 0")
    assert [cluster["number"] for cluster in get(url, "/api/clusters")["clusters"]] == [0, 2]
    post(url, {"do": "name", "cluster": 0, "name": "=cmd|' /C calc'!A0"}, 1)
    (run.folder / "x.parquet").write_bytes(ask(url, "/export/clusters.parquet")[2])
    table = pq.read_table(run.folder / "x.parquet").to_pydict()
    assert set(table["cluster"]) == {0, 2}
    assert set(table["original_cluster"]) == {0, 1, 2}
    assert ask(url, "/export/clusters.csv")[2].startswith(b"path,cluster,name,original_cluster,distance,label\r\n")
    for version in (2, 3):
        assert post(url, {"do": "undo"}, version)[0] == 200
    assert len(get(url, "/api/clusters")["clusters"]) == 3
    assert (run.folder / "labels.npy").read_bytes() == labels


def test_an_edit_of_what_somebody_else_changed_is_refused(url):
    assert post(url, {"do": "name", "cluster": 0, "name": "a"})[0] == 200
    status, answer = post(url, {"do": "name", "cluster": 0, "name": "b"})
    assert status == 409
    assert "Somebody else" in answer["error"]


def test_edits_made_by_another_process_are_seen_at_once(run, url):
    from bitmosaic.explorer.clusters import Pictures

    Pictures.of(run).log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    assert get(url, "/api/run")["clusters"] == 2


def test_the_map_and_the_duplicates_are_computed_once_and_kept(run, url):
    for path in ("/api/map", "/api/duplicates"):
        for _ in range(600):
            status, _, body = ask(url, path)
            if status != 202:
                break
            assert set(json.loads(body)) == {"stage", "done", "total"}
            time.sleep(0.05)  # so that it can work
        assert status == 200, body
    places = get(url, "/api/map")
    assert places["rows"] == list(range(120))
    assert min(places["x"]) >= 0
    assert max(places["x"]) <= 65535
    assert (run.folder / "map.npz").is_file()


@pytest.mark.parametrize(
    "forged", [{"sizes": [3]}, {"sizes": [-1, 3]}, {"radius": [1]}, {"distances": [0]}, {"sizes": 2}]
)
def test_forged_duplicates_are_found_anew(run, forged):
    pages = Pages(run)
    codes = np.frombuffer(_fingerprint(run.column("codes")), np.uint8)
    right = {"radius": 99, "sizes": [2], "rows": [0, 1], "distances": [0, 5], "codes": codes}
    for arrays, radius in ((right, 99), (right | forged, pytest.approx(6, abs=6))):
        np.savez(run.folder / "duplicates.npz", **arrays)
        assert duplicates_of(run, pages.pictures.codes, quiet)[0] == radius


def test_outliers_come_with_the_most_unusual_first(url):
    found = get(url, "/api/outliers?count=10")
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert found["total"] == 120


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/nothing",
            "/static/../server.py",
            "/static/%2e%2e%2fserver.py",
            "/static/shell.html",
            "/thumb/../manifest.json",
        ),
        *("/thumb/120", "/thumb/-1", "/thumb/x", "/image/99999999999999999999", "/api/picture/120", "/api/cluster/3"),
        *("/export/clusters.exe", "/cluster/x", "/api/cluster/99999999999999999999999/rows", "/static/"),
    ],
)
def test_what_is_not_there_is_404_in_json(url, path):
    status, headers, body = ask(url, path)
    assert status == 404
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1]evil",
        "localhost:evil",
        "",
    ],
)
def test_a_foreign_host_name_is_refused(url, host):
    status, _, body = ask(url, "/api/run", Host=host)
    assert status == 421
    assert "as localhost, by number or as its --host" in json.loads(body)["error"]


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:8420", "192.0.2.7:80"])
def test_addresses_and_localhost_are_answered(url, host):
    assert ask(url, "/api/run", Host=host)[0] == 200


def test_a_name_that_was_given_is_answered(run):
    with serving(run, names=("gallery.example",)) as url:
        assert ask(url, "/", Host="Gallery.example:9")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Bitmosaic-Token": ""}, 403),
        ({"X-Bitmosaic-Token": "wrong"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Length": "99999999"}, 413),
    ],
)
def test_edits_need_the_token_of_our_own_pages(run, url, headers, status):
    assert post(url, {"do": "name", "cluster": 0, "name": "x"}, **headers)[0] == status
    assert not (run.folder / "edits.jsonl").exists()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"edit": 1}', b'{"edit": {}, "version": 0}', b"[" * 100_000])
def test_a_bad_edit_is_one_sentence(url, body):
    headers = {"X-Bitmosaic-Token": token(url), "Content-Type": "application/json"}
    status, _, answer = ask(url, "/api/edits", "POST", body, **headers)
    assert status == 400
    assert json.loads(answer)["error"].endswith(".")


def test_every_answer_has_a_strict_policy_and_only_the_map_may_compile(url):
    for path in ("/", "/cluster/0", "/api/run", "/thumb/1", "/nothing", "/static/main.js"):
        policy = ask(url, path)[1]["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert "'unsafe-eval'" in ask(url, "/map")[1]["content-security-policy"]
    assert ask(url, "/")[1]["x-content-type-options"] == "nosniff"


def test_a_number_without_end_is_not_found_and_an_unforeseen_error_keeps_its_policy(url, monkeypatch):
    assert ask(url, "/thumb/" + "9" * 5000)[0] == 404
    monkeypatch.setattr(Pages, "overview", lambda self: 1 / 0)
    status, headers, body = ask(url, "/api/run")
    assert status == 500
    assert "ZeroDivisionError" in json.loads(body)["error"]
    assert "default-src 'none'" in headers["content-security-policy"]


def test_a_damaged_log_is_one_sentence_everywhere(run, url):
    (run.folder / "edits.jsonl").write_text("{}\n")
    for path in ("/api/run", "/api/clusters", "/export/clusters.csv"):
        status, _, body = ask(url, path)
        assert status == 400
        assert "edits.jsonl" in json.loads(body)["error"]


def test_static_files_are_asked_for_again_by_their_tag(url):
    headers = ask(url, "/static/main.js")[1]
    assert headers["content-type"].startswith("text/javascript")
    status, _, nothing = ask(url, "/static/main.js", **{"If-None-Match": headers["etag"]})
    assert (status, nothing) == (304, b"")
    assert b"Plotly" in ask(url, "/static/plotly.js")[2] or b"plotly" in ask(url, "/static/plotly.js")[2]


def test_answers_do_not_wait_for_each_other_s_acknowledgement():
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_one_sentence():
    with listen("127.0.0.1", 0) as listener, pytest.raises(ParameterError, match="needs a free port"):
        listen("127.0.0.1", listener.getsockname()[1])


def test_a_log_that_may_not_be_read_is_told_in_one_sentence(run, monkeypatch):
    pages, stat = Pages(run), Path.stat

    def refuse(path, **options):
        if path.name == "edits.jsonl":
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(FileFormatError, match=r"edits.jsonl cannot be read \(Permission denied\)"):
        pages.overview()
    monkeypatch.undo()
    assert pages.overview()["clusters"] == 3
