--[[ shown: reads and writes what running jobs show of themselves: how far each has come, and the last chunks of its stream.

`shown` has:

    ID      claim=2 fence=1795225746504-88 at=1795226391000 says=2 said=7 start=40 from=1 to=57 bytes=812 base=0
            and how far the job has come behind a line break, as its handler said it: 37/120 uploading
    ID~57   claim=2 at=1795226391000      chunk 57, and its text behind a line break

`says` is the number of the claim that said how far the job has come, at `at`; it may be an earlier claim. `said` is the
number of the claim's last report of it. Chunks have the numbers 1, 2, 3… over all claims
of a job; `start` is the number before the first chunk of the claim. Redis has the chunks `from` to `to`, if `from` is
not greater; the fields of these chunks have `bytes`. `base` is the number of the last chunk of an earlier job with this
id.

When a job with chunks dies, the line gets `died=MS`; when such a job leaves Redis, `left=MS`. The job then also gets a
member `shown|ID` in `expiring`, an hour ahead, when a claim forgets all of it. Without chunks, the line is removed when
the job leaves Redis.

Fact: shows
With: shown
Uses: digits(digits)
]]

local CHUNK_MARK = '~'
local KEPT_MAX = 1000      -- the most chunks that Redis keeps of a job
local NUMBER_MAX = 2 ^ 53
local HEAD = '^claim=(%d+) fence=(%S+) at=(%d+) says=(%d+) said=(%d+) start=(%d+) from=(%d+) to=(%d+) bytes=(%d+) base=(%d+) ?(%l*)=?(%d*)\n?(.*)$'

--- Return the field of a chunk.
local function chunk_field(id, place)
  return id .. CHUNK_MARK .. digits(place)
end

--- Return the bytes of a chunk's field.
local function chunk_size(id, place)
  return redis.call('HSTRLEN', shown, chunk_field(id, place))
end

--- Return what a line says; nil for no line, and for a line that no script writes. From numbers that no script writes,
--- a loop over the chunks might not end.
local function read_shown(line)
  local claim, fence, at, says, said, start, from, to, bytes, base, ending, ended, text = (line or ''):match(HEAD)
  if not claim then
    return nil
  end
  local it = {
    claim = claim, fence = fence, at = at, says = says, said = tonumber(said), start = tonumber(start),
    from = tonumber(from), to = tonumber(to), bytes = tonumber(bytes), base = tonumber(base),
    ending = ending ~= '' and ending or nil, ended = ended, text = text,
  }
  local most = math.max(it.said, it.start, it.from, it.to, it.bytes, it.base)
  return most < NUMBER_MAX and it.to - it.from < KEPT_MAX and it or nil
end

local function write_shown(it)
  local line = 'claim=' .. it.claim .. ' fence=' .. it.fence .. ' at=' .. it.at .. ' says=' .. it.says .. ' said=' .. digits(it.said)
    .. ' start=' .. digits(it.start) .. ' from=' .. digits(it.from) .. ' to=' .. digits(it.to)
    .. ' bytes=' .. digits(it.bytes) .. ' base=' .. digits(it.base)
  if it.ending then
    line = line .. ' ' .. it.ending .. '=' .. it.ended
  end
  return it.text ~= '' and line .. '\n' .. it.text or line
end

--- Return the fields of all chunks that Redis has of a job, and the field of the job itself.
local function fields_of(id, line)
  local it, fields = read_shown(line), {id}
  if it then
    for place = it.from, it.to do
      fields[#fields + 1] = chunk_field(id, place)
    end
  end
  return fields
end
