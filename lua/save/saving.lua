--[[ saving: decides the outcome of each record of a save. Everything is decided before anything is written.

Keys: state boxes
Meta: audit durable
Later: backlog_bytes backlog_max_bytes
Args: each each_count column tails worker
Uses: call(now_text) meta(facts fact set_fact) emit(emit) fences(refusal_of) state(read_line write_line field_in count)
    batch(call_many read_many) digits(digits) box(read_header write_header entry_field)
]]

local ENTRIES_MAX, BYTES_MAX = 10000, 16777216
local NO_VALUE, FULL = 33, 43   -- `!` and `+`

local lines, headers, values, notes   -- by record: its job's line, the header of its box, what the step returned, the digest
local said      -- the events in order: neighbours of one type together
local written   -- fields of `boxes` with their values
local met       -- life → its box: how many entries it has, the bytes of their values, and what this call writes of it
local changed   -- lives and boxes that change

local function reset()
  lines, headers, values, notes = nil, nil, nil, nil
  said, written, met, changed = nil, nil, nil, nil
end

--- Return the box of a record; or nil, and why the record is refused.
local function box_of(i, id, fence, life)
  local line = lines[i]
  local why = refusal_of(id, line, fence)
  if why then
    return nil, why
  end
  local box = met[life]
  if box then
    return box, box.id ~= id and 'conflict' or nil
  end
  local entries, bytes = read_header(headers[i])
  box = {id = id, entries = entries, bytes = bytes, written = {}}
  local known = field_in(line, ' life=')
  if known and known ~= life then
    return nil, 'conflict'
  elseif not known or line:find(' failed=', 1, true) or line:find(' lost=', 1, true) then
    local job = read_line(line)
    box.job, box.is_new = job, not known
    box.base = (job.failed or job.lost) and count(job, 'failed') .. '/' .. count(job, 'lost')
    job.life = life
  end
  met[life] = box
  return box
end

--- Add a record to the event `step_saved`, or to the event `step_begun`.
local function say(is_saved, record)
  local last = said[#said]
  if not last or last.is_saved ~= is_saved then
    last = {is_saved = is_saved, records = {}}
    said[#said + 1] = last
  end
  last.records[#last.records + 1] = record
end

--- Return 'conflict' if the entry in Redis is another step's, and 'known' if it is begun or saved as the record asks.
--- Return nil if the step was only begun, and the record saves it.
local function compare(old, what, name)
  local size = #name
  if old:sub(1, size + 1) ~= name .. ' ' then
    return 'conflict'
  end
  return (what == 'begin' or old:sub(size + 2, size + 6) == 'saved') and 'known' or nil
end

--- Carry a record out. Returns why it was not carried out, if so, and the number of entries in the box.
local function carry_out(i)
  local id, fence, life, what, entry, name = each(i)
  local box, why = box_of(i, id, fence, life)
  if why then
    return why, '-'
  end
  local field, has = entry_field(life, entry), box.entries
  if entry < 1 then
    return 'conflict', digits(has)
  elseif entry > has + 1 then
    return 'behind', digits(has)
  elseif entry <= has then
    why = compare(box.written[field] or redis.call('HGET', boxes, field) or name .. ' begun', what, name)
    if why == 'known' then
      return nil
    end
  end
  local value = values[i] or '!not_json'
  local size = what == 'save' and value:byte() ~= NO_VALUE and #value or 0
  if why == 'conflict' or entry > ENTRIES_MAX or box.bytes + size > BYTES_MAX then
    return why or 'full', digits(has)
  end
  local text = name .. (what == 'save' and ' saved at=' or ' begun at=') .. now_text .. ' fence=' .. fence
  local record = '["' .. id .. '","' .. fence .. '","' .. life .. '",' .. digits(entry) .. ',"' .. name .. '"'
  if what ~= 'save' then
    say(false, record .. ']')
  else
    local is_kept = value:byte() ~= NO_VALUE
    local note, logged = is_kept and notes[i] or value:sub(2), nil
    if is_kept and note:byte() == FULL then
      note = note:sub(2)
      logged = facts.audit == 'on' and fact('backlog_bytes') < fact('backlog_max_bytes') and cjson.encode(value) or nil
    end
    local ending = box.base and ',' .. (logged or 'null') .. ',"' .. box.base .. '"]' or logged and ',' .. logged .. ']' or ']'
    text = text .. ' digest=' .. note .. (is_kept and '\n' .. value or '')
    say(true, record .. ',' .. (is_kept and digits(size) or 'null') .. ',"' .. note .. '"' .. ending)
    box.is_moved = box.is_moved or box.base and box.job.base ~= box.base
  end
  if not box.is_changed then
    box.is_changed = true
    changed[#changed + 1], changed[#changed + 2] = life, box
  end
  box.entries, box.bytes, box.written[field] = math.max(has, entry), box.bytes + size, text
  written[#written + 1], written[#written + 2] = field, text
  return nil
end

--- Decide about all records. Returns the answer.
local function decide_saves()
  lines, headers = read_many(state, column(1)), read_many(boxes, column(3))
  values, notes = tails()
  said, written, met, changed = {}, {}, {}, {}
  local answer = {}
  for i = 1, each_count do
    local why, has = carry_out(i)
    if why then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = digits(i), why, has
    end
  end
  if #changed > 0 and not facts.durable then
    set_fact('durable', '1')
  end
  return answer
end

--- Append the events, and write the boxes, and the lines of the jobs whose boxes begin or whose `base` changes.
local function write_saves()
  for i = 1, #said do
    if said[i].is_saved then
      emit('step_saved', now_text, worker, said[i].records)
    else
      emit('step_begun', now_text, worker, said[i].records)
    end
  end
  local rewritten = {}
  for at = 1, #changed, 2 do
    local life, box = changed[at], changed[at + 1]
    written[#written + 1], written[#written + 2] = life, write_header(box.id, box.entries, box.bytes)
    if box.is_new or box.is_moved then
      box.job.base = box.is_moved and box.base or box.job.base
      rewritten[#rewritten + 1], rewritten[#rewritten + 2] = box.id, write_line(box.job)
    end
  end
  call_many('HSET', boxes, written)
  call_many('HSET', state, rewritten)
end
