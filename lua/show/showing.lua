--[[ showing: carries out the records of `show`. A job keeps its last KEPT_MAX chunks, and at most BYTES_MAX bytes of them.

Keys: state shown expiring
Args: each each_count column
Unread: expiring
Uses: meta(facts set_fact) fences(refusal_of) batch(call_many read_many) digits(digits)
    shown(read_shown write_shown chunk_field chunk_size KEPT_MAX)
]]

local BYTES_MAX = 1048576

local met      -- id and fence → what is known of the job, or why its records are refused
local ids      -- the ids of the jobs that show something
local gone     -- fields that are removed
local marks    -- members of `expiring` that are removed

local function reset()
  met, ids, gone, marks = nil, nil, nil, nil
end

--- Remove the chunks of a job before this number.
local function drop_before(it, number)
  while it.from < number and it.from <= it.to do
    local text = it.chunks[it.from]
    if text then
      it.chunks[it.from] = nil
      it.bytes = it.bytes - #text
    else
      it.bytes = it.bytes - chunk_size(it.id, it.from)
      gone[#gone + 1] = chunk_field(it.id, it.from)
    end
    it.from = it.from + 1
  end
  it.from = math.max(it.from, number)
end

--- Return what a job shows, as this claim goes on with it.
local function begin(id, line, fence, claim, start)
  local it = read_shown(line)
    or {text = '', at = '0', says = '0', said = 0, start = 0, from = 1, to = 0, bytes = 0, base = 0}
  it.id, it.chunks, it.order = id, {}, {}
  if it.ending then
    marks[#marks + 1] = 'shown|' .. id
    if it.ending == 'left' then
      -- The chunks are those of an earlier job of this id.
      drop_before(it, it.to + 1)
      it.base = it.to
    end
    it.ending = nil
  end
  if it.fence ~= fence then
    it.start, it.said = it.to, 0
  end
  it.fence, it.claim, it.start = fence, claim, math.max(it.start, start)
  return it
end

--- Add a chunk, and remove the oldest ones for which there is no room.
local function add_chunk(it, number, text, at)
  local place = it.start + number
  if place <= it.to then
    return
  end
  local field = 'claim=' .. it.claim .. ' at=' .. at .. '\n' .. text
  if it.from > it.to then
    it.from = place
  end
  drop_before(it, place - KEPT_MAX + 1)
  it.to = place
  it.chunks[place], it.order[#it.order + 1] = field, place
  it.bytes = it.bytes + #field
  while it.bytes > BYTES_MAX and it.from < it.to do
    drop_before(it, it.from + 1)
  end
end

--- Carry out all records. Returns the reply.
local function show_all(now)
  check_keys()
  local reply, at = {'ok'}, digits(now)
  met, ids, gone, marks = {}, {}, {}, {}
  local lines, stands = read_many(shown, column(1)), read_many(state, column(1))
  for i = 1, each_count do
    local id, fence, claim, start, kind, number, text = each(i)
    local it = met[id .. ' ' .. fence]
    if not it then
      local why = refusal_of(id, stands[i], fence)
      it = why or begin(id, lines[i], fence, claim, start)
      met[id .. ' ' .. fence] = it
      reply[#reply + 1], reply[#reply + 2] = id, why or digits(it.start)
      ids[#ids + 1] = not why and it or nil
    end
    if it == 'gone' or it == 'stale' then
      -- The claim is not in force.
      kind = ''
    end
    if kind == 'says' and number > it.said then
      it.said, it.text, it.at, it.says = number, text, at, claim
    elseif kind == 'chunk' then
      add_chunk(it, number, text, at)
    end
  end
  return reply
end

--- Write what the jobs show.
local function write_all()
  local written = {}
  for i = 1, #ids do
    local it = ids[i]
    for j = 1, #it.order do
      local place = it.order[j]
      if it.chunks[place] then
        written[#written + 1], written[#written + 2] = chunk_field(it.id, place), it.chunks[place]
      end
    end
    written[#written + 1], written[#written + 2] = it.id, write_shown(it)
  end
  call_many('HDEL', shown, gone)
  call_many('HSET', shown, written)
  call_many('ZREM', expiring, marks)
  if #ids > 0 and not facts.shows then
    set_fact('shows', '1')
  end
end
