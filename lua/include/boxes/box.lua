--[[ box: keeps the boxes of durable jobs. A box has what a job has saved, until the job leaves Redis. Its name is a
life.

A life is 16 hex digits that a worker makes up, so another job of the same id has another box. `boxes` has:

    LIFE        job=ID entries=2 bytes=812
    LIFE|1      charge saved at=1795226390000 fence=1795225746504-88 digest=70c5…     and what the step returned behind a line break
    LIFE|2      receipt begun at=1795226390007 fence=1795225746504-88

Entries have the numbers 1, 2, 3… `bytes` counts the values. If a step returned a value that cannot be kept, the reason
(too_large or not_json) is in the place of the digest.

When a job leaves Redis, its box gets a member `box|LIFE` in `expiring`. Claims empty the box, at most CUT_MAX entries
in a call. They remove the last entry first and the header last, so that a later call can continue.

Fact: durable
With: boxes
Lists: cut emptied
Uses: parts(list_of) batch(call_many) digits(digits)
]]

local lists = {}
local CUT_MAX = 1000   -- the most entries that a call removes

local left   -- how many entries the call may still remove; nil: none was removed so far

local function reset()
  left = nil
end

--- Return the number of entries in a header, and the bytes of their values; 0 and 0 without a header.
local function read_header(header)
  local entries, bytes = (header or ''):match(' entries=(%d+) bytes=(%d+)$')
  return tonumber(entries) or 0, tonumber(bytes) or 0
end

local function write_header(id, entries, bytes)
  return 'job=' .. id .. ' entries=' .. digits(entries) .. ' bytes=' .. digits(bytes)
end

--- Return the field of an entry.
local function entry_field(life, place)
  return life .. '|' .. digits(place)
end

--- Note the entries of a box that this call removes at its end. Returns whether the box is empty then.
local function empty_box(life)
  local header = redis.call('HGET', boxes, life)
  local entries, bytes = read_header(header)
  left = left or CUT_MAX
  local emptied = list_of(lists, 'emptied')
  local from = math.max(entries - left, 0)
  for place = entries, from + 1, -1 do
    emptied[#emptied + 1] = entry_field(life, place)
  end
  left = left - (entries - from)
  if from > 0 then
    local cut = list_of(lists, 'cut')
    cut[#cut + 1], cut[#cut + 2] = life, write_header(header:match('^job=(%S+)') or '-', from, bytes)
    return false
  end
  emptied[#emptied + 1] = life
  return true
end

local function write_emptied()
  call_many('HDEL', boxes, lists.emptied)
  call_many('HSET', boxes, lists.cut)
end
