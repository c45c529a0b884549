"""The explorer's server over real HTTP: answers, and refused requests."""

import http.client
import io
import json
import re
import threading
import time
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest
from explored import HOSTILE, serving

from bitmosaic.errors import ParameterError
from bitmosaic.explorer import api as api_module
from bitmosaic.explorer.api import Api
from bitmosaic.explorer.server import listen
from bitmosaic.pipeline.duplicates import Duplicates, find_duplicates


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


def test_run_answer_has_scores_and_view_weights(served_run, url):
    facts = get(url, "/api/run")
    assert (facts["images"], facts["clusters"], facts["bits"], facts["name"]) == (120, 3, 128, "run")
    assert facts["scores"] == pytest.approx(served_run.manifest.scores)
    assert [view["name"] for view in facts["views"]] == ["hog", "ch"]
    assert facts["images_found"] is True
    assert facts["edits"] == {"version": 0, "count": 0, "last": None, "log": []}


def test_clusters_have_their_most_central_images(served_run, url):
    clusters = get(url, "/api/clusters")["clusters"]
    assert [cluster["size"] for cluster in clusters] == [40, 40, 40]
    distances = served_run.column("distances")
    for cluster in clusters:
        members = np.flatnonzero(served_run.column("labels") == cluster["number"])
        assert distances[cluster["central"]].max() <= np.sort(distances[members])[7]


def test_pages_of_a_gallery_join_without_gaps(url):
    whole = get(url, "/api/cluster/1/rows?start=0&count=300")
    parts = [get(url, f"/api/cluster/1/rows?start={start}&count=15") for start in (0, 15, 30)]
    assert [row for part in parts for row in part["rows"]] == whole["rows"]
    assert whole["total"] == 40
    assert whole["distances"] == sorted(whole["distances"])


def test_cluster_answer_has_nearest_clusters_and_histogram(url):
    cluster = get(url, "/api/cluster/2")
    assert {near["number"] for near in cluster["nearest"]} == {0, 1}
    assert sum(cluster["histogram"]["counts"]) == 40
    assert cluster["labels"][0]["count"] == 40
    assert len(get(url, "/api/cluster/2/views")["views"]) == 2


def test_image_answer_has_its_code_and_neighbors_have_the_nearest_codes(served_run, url):
    image = get(url, "/api/image/60")
    assert bytes.fromhex(image["code"]) == served_run.column("codes")[60].tobytes()
    assert image["clusters"][0]["number"] == image["cluster"]
    found = get(url, "/api/image/60/neighbors?count=10")
    distances = np.bitwise_count(served_run.column("codes") ^ served_run.column("codes")[60]).sum(1)
    distances[60] = 999
    assert found["rows"] == np.argsort(distances, kind="stable")[:10].tolist()
    assert found["distances"] == np.sort(distances)[:10].tolist()


def test_images_are_found_by_a_part_of_their_path(served_run, url):
    found = get(url, "/api/search?q=NOISE%2F0012")["images"]
    assert found["paths"] == ["noise/0012.png"]
    assert found["rows"] == [served_run.paths.index("noise/0012.png")]
    found = get(url, f"/api/search?q={quote(HOSTILE[0])}")["images"]
    assert found["paths"] == [f"stripes/{HOSTILE[0]}"]
    assert get(url, "/api/search?q=nothing")["images"]["rows"] == []
    many = get(url, "/api/search?q=png")["images"]
    assert (len(many["rows"]), many["more"]) == (60, True)


def test_thumbnails_and_large_images_are_cacheable_jpegs(url):
    for path in ("/thumb/3", "/large/3"):
        status, headers, body = ask(url, path)
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        assert body.startswith(b"\xff\xd8")
        assert "immutable" in headers["cache-control"]


def test_exported_tables_follow_merge_and_undo(served_run, url):
    labels = (served_run.folder / "labels.npy").read_bytes()
    status, answer = post(url, {"do": "merge", "clusters": [0, 1], "into": 0})
    assert (status, answer["message"]) == (200, "cluster 1 merged into cluster 0")
    assert [cluster["number"] for cluster in get(url, "/api/clusters")["clusters"]] == [0, 2]
    post(url, {"do": "name", "cluster": 0, "name": "=cmd|' /C calc'!A0"}, 1)
    table = pq.read_table(io.BytesIO(ask(url, "/export/clusters.parquet")[2])).to_pydict()
    assert set(table["cluster"]) == {0, 2}
    assert set(table["original_cluster"]) == {0, 1, 2}
    assert ask(url, "/export/clusters.csv")[2].startswith(b"path,cluster,name,original_cluster,distance,label\r\n")
    for version in (2, 3):
        assert post(url, {"do": "undo"}, version)[0] == 200
    assert len(get(url, "/api/clusters")["clusters"]) == 3
    assert (served_run.folder / "labels.npy").read_bytes() == labels


def test_a_conflicting_edit_is_refused(url):
    assert post(url, {"do": "name", "cluster": 0, "name": "a"})[0] == 200
    status, answer = post(url, {"do": "name", "cluster": 0, "name": "b"})
    assert status == 409
    assert answer["error"].endswith(".")


def test_edits_by_another_process_are_visible(served_run, url):
    from bitmosaic.run.clusters import ImageFacts

    ImageFacts.of(served_run).log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    assert get(url, "/api/run")["clusters"] == 2


def test_map_is_stored_and_duplicates_equal_those_of_the_command(served_run, url):
    for path in ("/api/map", "/api/duplicates"):
        for _ in range(600):
            status, _, body = ask(url, path)
            if status != 202:
                break
            assert set(json.loads(body)) == {"stage", "done", "total"}
            time.sleep(0.05)
        assert status == 200, body
    places = get(url, "/api/map")
    assert places["rows"] == list(range(120))
    assert min(places["x"]) >= 0
    assert max(places["x"]) <= 65535
    assert (served_run.folder / "map.npz").is_file()
    found, shown = find_duplicates(served_run), get(url, "/api/duplicates?count=1000")
    assert (shown["by"], shown["radius"], shown["total"]) == ("images", 12, len(found.groups))
    assert [group["rows"] for group in shown["groups"]] == [[copy.row for copy in group] for group in found.groups]


def test_outliers_are_sorted_by_score(url):
    found = get(url, "/api/outliers?count=10")
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert found["total"] == 120


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/static/%2e%2e%2fserver.py", "/static/shell.html", "/thumb/120", "/thumb/-1"),
        *("/large/99999999999999999999", "/api/image/120", "/api/cluster/3", "/export/clusters.exe"),
    ],
)
def test_unknown_paths_give_404_as_json(url, path):
    status, headers, body = ask(url, path)
    assert status == 404
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::1]evil", ""],
)
def test_unknown_host_names_are_refused(url, host):
    status, _, body = ask(url, "/api/run", Host=host)
    assert status == 421
    assert "Use localhost, an IP address or the name given as --host" in json.loads(body)["error"]


@pytest.mark.parametrize("host", ["localhost:1234", "[::1]:8420", "192.0.2.7:80"])
def test_ip_addresses_and_localhost_are_accepted(url, host):
    assert ask(url, "/api/run", Host=host)[0] == 200


def test_a_given_host_name_is_accepted(run):
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
def test_edits_need_token_origin_and_content_type(served_run, url, headers, status):
    assert post(url, {"do": "name", "cluster": 0, "name": "x"}, **headers)[0] == status
    assert not (served_run.folder / "edits.jsonl").exists()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"edit": {}, "version": false}', b"[" * 100_000])
def test_a_malformed_edit_gives_one_sentence(url, body):
    headers = {"X-Bitmosaic-Token": token(url), "Content-Type": "application/json"}
    status, _, answer = ask(url, "/api/edits", "POST", body, **headers)
    assert status == 400
    assert json.loads(answer)["error"].endswith(".")


def test_only_the_map_page_allows_eval_in_its_security_policy(url):
    for path in ("/", "/cluster/0", "/api/run", "/thumb/1", "/nothing", "/static/main.js"):
        policy = ask(url, path)[1]["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert "'unsafe-eval'" in ask(url, "/map")[1]["content-security-policy"]
    assert ask(url, "/")[1]["x-content-type-options"] == "nosniff"


def test_unexpected_errors_keep_the_security_policy(url, monkeypatch):
    assert ask(url, "/thumb/" + "9" * 5000)[0] == 404
    monkeypatch.setattr(Api, "overview", lambda self: 1 / 0)
    status, headers, body = ask(url, "/api/run")
    assert status == 500
    assert "ZeroDivisionError" in json.loads(body)["error"]
    assert "default-src 'none'" in headers["content-security-policy"]


def test_a_damaged_edit_log_gives_one_sentence(served_run, url):
    (served_run.folder / "edits.jsonl").write_text("{}\n")
    for path in ("/api/run", "/api/clusters", "/export/clusters.csv"):
        status, _, body = ask(url, path)
        assert status == 400
        assert "edits.jsonl" in json.loads(body)["error"]


def test_static_files_are_revalidated_by_etag(url):
    headers = ask(url, "/static/main.js")[1]
    assert headers["content-type"].startswith("text/javascript")
    status, _, nothing = ask(url, "/static/main.js", **{"If-None-Match": headers["etag"]})
    assert (status, nothing) == (304, b"")
    assert b"Plotly" in ask(url, "/static/plotly.js")[2] or b"plotly" in ask(url, "/static/plotly.js")[2]


def test_a_used_port_gives_one_sentence():
    with listen("127.0.0.1", 0) as listener, pytest.raises(ParameterError, match="is used by another program"):
        listen("127.0.0.1", listener.getsockname()[1])


def test_finding_duplicates_reports_progress_and_blocks_no_other_page(run, monkeypatch):
    finish = threading.Event()

    def slow(run, source, progress):
        progress("finding images", 1000, 0)
        assert finish.wait(60)
        return Duplicates("images", 12, [])

    monkeypatch.setattr(api_module, "find_duplicates", slow)
    with serving(run) as url:
        while (body := ask(url, "/api/duplicates")[2]) != b'{"stage":"finding images","done":1000,"total":0}':
            assert json.loads(body) == {"stage": "starting", "done": 0, "total": 0}
        for path in ("/api/run", "/api/clusters", "/api/cluster/0", "/api/outliers", "/thumb/3", "/large/3"):
            assert ask(url, path)[0] == 200
        finish.set()
        while ask(url, "/api/duplicates")[0] == 202:
            time.sleep(0.01)
        assert get(url, "/api/duplicates") == {"total": 0, "by": "images", "radius": 12, "groups": []}
