"""Tables of an archive are held in one piece, as they were written."""

import pyarrow as pa

from mast_ray.tables.prepared import in_one_piece


def test_a_table_in_pieces_becomes_one():
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())], metadata={"made": "here"})
    parts = [pa.table({"a": [1, 2], "b": ["x", None]}, schema), pa.table({"a": [3], "b": ["z"]}, schema)]
    table = pa.concat_tables(parts)
    whole = in_one_piece(table)
    assert whole.equals(table, check_metadata=True)
    assert [column.num_chunks for column in whole.columns] == [1, 1]
    assert in_one_piece(schema.empty_table()).equals(schema.empty_table(), check_metadata=True)
