--[[ box: keeps the boxes of durable jobs. A box has what a job has saved, and the signals that were sent to it, until the
job leaves Redis. Its name is a life.

A life is 16 hex digits that a worker or a sender makes up, so another job of the same id has another box. `boxes` has:

    LIFE             job=ID entries=3 bytes=812 mail=2
    LIFE|1           charge saved at=1795226390000 fence=1795225746504-88 digest=70c5…     and what the step returned behind a line break
    LIFE|2           receipt begun at=1795226390007 fence=1795225746504-88
    LIFE|3           approval waits at=1795226390007 fence=1795225746504-88 until=1795312790007     (sleeps: it waits for no signal)
    LIFE>1           approval at=1795226391000 digest=…      signal 1, and what it brings behind a line break until a wait takes it
    LIFE>approval    1 2                                     the signals of this name that wait, oldest first
    LIFE=webhook-9   1                                       the signal that came with this key

Entries have the numbers 1, 2, 3…, and so have signals. `bytes` counts the values of entries and signals. If a step
returned a value that cannot be kept, the reason (too_large or not_json) is in the place of the digest; over: a wait has
ended without a signal.

When a job leaves Redis, its box gets a member `box|LIFE` in `expiring`. Claims empty the box, at most CUT_MAX entries
and signals in a call. They remove the last one first and the header last, so that a later call can continue.

Fact: durable
With: boxes parked
Lists: cut emptied
Uses: parts(list_of) batch(call_many) digits(digits)
]]

local lists = {}
local CUT_MAX = 1000   -- the most entries and signals that a call removes

local left   -- how many the call may still remove; nil: none was removed so far

local function reset()
  left = nil
end

--- Return the number of entries in a header, the bytes of the values, and the number of signals; 0 without a header.
local function read_header(header)
  local entries, bytes, mail = (header or ''):match(' entries=(%d+) bytes=(%d+) ?m?a?i?l?=?(%d*)$')
  return tonumber(entries) or 0, tonumber(bytes) or 0, tonumber(mail) or 0
end

local function write_header(id, entries, bytes, mail)
  local head = 'job=' .. id .. ' entries=' .. digits(entries) .. ' bytes=' .. digits(bytes)
  return mail > 0 and head .. ' mail=' .. digits(mail) or head
end

--- Return the field of an entry.
local function entry_field(life, place)
  return life .. '|' .. digits(place)
end

--- Return the field of a signal's number, or of the list of a name's signals.
local function mail_field(life, what)
  return life .. '>' .. what
end

--- Remove jobs from the index of parked jobs.
local function unindex_parked(ids)
  if boxes then
    call_many('ZREM', parked, ids)
  end
end

--- Return the name and the key of a signal; the key is nil if it came without one.
local function read_signal(text)
  local line = (text or ''):match('^[^\n]*')
  return line:match('^%S*'), line:match(' key=(%S+)')
end

--- Note the entries and signals of a box that this call removes at its end. Returns whether the box is empty then.
local function empty_box(life)
  local header = redis.call('HGET', boxes, life)
  local entries, bytes, mail = read_header(header)
  left = left or CUT_MAX
  local emptied = list_of(lists, 'emptied')
  local mail_from = math.max(mail - left, 0)
  for at = mail, mail_from + 1, -1 do
    local field = mail_field(life, digits(at))
    local name, key = read_signal(redis.call('HGET', boxes, field))
    emptied[#emptied + 1], emptied[#emptied + 2] = field, mail_field(life, name)
    emptied[#emptied + 1] = key and life .. '=' .. key or nil
  end
  left = left - (mail - mail_from)
  local from = math.max(entries - left, 0)
  for place = entries, from + 1, -1 do
    emptied[#emptied + 1] = entry_field(life, place)
  end
  left = left - (entries - from)
  if from > 0 or mail_from > 0 then
    local cut = list_of(lists, 'cut')
    cut[#cut + 1], cut[#cut + 2] = life, write_header(header:match('^job=(%S+)') or '-', from, bytes, mail_from)
    return false
  end
  emptied[#emptied + 1] = life
  return true
end

local function write_emptied()
  call_many('HDEL', boxes, lists.emptied)
  call_many('HSET', boxes, lists.cut)
end
