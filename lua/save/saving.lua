--[[ saving: decides the outcome of each record of a save. Everything is decided before anything is written.

Keys: state boxes
Meta: audit durable
Later: backlog_bytes backlog_max_bytes
Args: each each_count column same tails worker
Uses: call(now now_text) meta(facts fact set_fact) emit(emit) fences(refusal_of) state(read_line write_line field_in count)
    batch(call_many read_many) digits(digits) box(read_header write_header entry_field mail_field read_signal)
    ripe(read_wait signal_of)
]]

local ENTRIES_MAX, BYTES_MAX, MOVED_MAX = 10000, 16777216, 1000
local SHOWN_MAX = 4096          -- bytes of an entry that the answer brings to the worker
local NO_VALUE, FULL = 33, 43   -- `!` and `+`
local DIGEST_LENGTH = 32

local lines, headers   -- by record: its job's line, and the header of its box; nil if all records have the same…
local line_of_all, header_of_all   -- …which is here
local values, notes   -- by record: what the step returned, and the digest
local said      -- the events in order: neighbours of one type together
local written   -- fields of `boxes` with their values
local met       -- life → its box: how many entries it has, the bytes of their values, and what this call writes of it
local changed   -- lives and boxes that change
local taken     -- fields of `boxes` that are removed: lists whose last signal is taken, and boxes that are moved
local moved     -- the parts of the event about signals whose box is moved

local function reset()
  lines, headers, values, notes, line_of_all, header_of_all = nil, nil, nil, nil, nil, nil
  said, written, met, changed, taken, moved = nil, nil, nil, nil, nil, nil
end

--- Return the line of a record's job, and the header of its box; false for one that Redis does not have.
local function found_for(i)
  local line, header = line_of_all, header_of_all
  if lines then
    line = lines[i]
  end
  if headers then
    header = headers[i]
  end
  return line, header
end

--- Return the box of a record; or nil, and why the record is refused.
local function box_of(i, id, fence, life)
  local line, header_now = found_for(i)
  local why = refusal_of(id, line, fence)
  if why then
    return nil, why
  end
  local box = met[life]
  if box then
    return box, box.id ~= id and 'conflict' or nil
  end
  local entries, bytes, mail = read_header(header_now)
  box = {id = id, entries = entries, bytes = bytes, mail = mail, written = {}, lists = {}}
  local known = field_in(line, ' life=')
  if known and known ~= life then
    return nil, 'other'
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

--- Add a record to the event `step_saved`: what a step returned, if it is logged; the failures and losses that no
--- longer count, if there are any; and the signal that a wait has taken.
local function say_saved(box, record, logged, message)
  local base = box.base and '"' .. box.base .. '"'
  if message then
    record = record .. ',' .. (logged or 'null') .. ',' .. (base or 'null') .. ',' .. message
  elseif base then
    record = record .. ',' .. (logged or 'null') .. ',' .. base
  elseif logged then
    record = record .. ',' .. logged
  end
  say(true, record .. ']')
  box.is_moved = box.is_moved or base and box.job.base ~= box.base
end

--- Return the signals of a name that wait in a box, as text, and the field of the list.
local function list_of_name(box, life, name)
  local field = mail_field(life, name)
  local list = box.lists[field]
  if not list then
    list = redis.call('HGET', boxes, field) or ''
    box.lists[field] = list
  end
  return list, field
end

--- Take a signal out of the list of its name; the list is removed with its last one. The signal keeps its first line.
local function take_signal(box, life, name, mark)
  local list, field = list_of_name(box, life, name)
  local rest = (' ' .. list .. ' '):gsub(' ' .. mark .. ' ', ' ', 1):match('^ *(.-) *$')
  box.lists[field] = rest
  if rest == '' then
    taken[#taken + 1] = field
  else
    written[#written + 1], written[#written + 2] = field, rest
  end
end

--- Return the first line of the signal that this claim took before under a number, if a failover has put the signal
--- back; nil if Redis has forgotten it. Return false if another signal has come under this number since then.
local function signal_again(life, name, about, digest)
  local text = redis.call('HGET', boxes, mail_field(life, about))
  local line = text and text:match('^[^\n]*')
  if line and (line:match('^%S*') ~= signal_of(name) or (field_in(line, ' digest=') or digest) ~= digest) then
    return false
  end
  return line or nil
end

--- Take a signal again; LINE is its first line, or nil if Redis has forgotten it.
local function take_again(box, life, name, about, line)
  local signal = signal_of(name)
  take_signal(box, life, signal, about)
  box.mail = math.max(box.mail, tonumber(about))
  written[#written + 1], written[#written + 2] = mail_field(life, about), line or signal
end

--- Note what this call writes of an entry.
local function write_entry(box, life, entry, field, text)
  if not box.is_changed then
    box.is_changed = true
    changed[#changed + 1], changed[#changed + 2] = life, box
  end
  box.entries, box.written[field] = math.max(box.entries, entry), text
  written[#written + 1], written[#written + 2] = field, text
end

--- Return until when a new wait or sleep lasts (Unix ms): ABOUT is that, or `+` and ms from now; nil: it has no end.
local function moment(about)
  local ahead, ms = about:match('^(%+?)(%d+)$')
  local value = ms and whole_number(ms)
  return value and (ahead == '+' and now + value or value)
end

--- Carry out a record of a wait or a sleep. OLD is the entry as it is, if there is one. Returns `over` and the text of
--- the entry if it is saved now, or was saved before; else why it is not, as `waits` and until when it waits.
local function await(box, old, record, i, entry)
  local _, fence, life, what, _, name, about = each(i)
  local field, kind = entry_field(life, entry), what == 'wait' and 'waits' or 'sleeps'
  local till
  if old then
    local old_name, old_kind, old_till = read_wait(old)
    if old_name == name and old_kind == 'saved' then
      return 'over', old
    elseif old_name ~= name or old_kind ~= kind then
      return 'conflict', digits(box.entries)
    end
    till = old_till
  else
    till = moment(about)
  end
  local signal = signal_of(name)
  local mark = what == 'wait' and list_of_name(box, life, signal):match('^%d+')
  local head = name .. ' saved at=' .. now_text .. ' fence=' .. fence .. ' digest='
  if mark then
    local kept = redis.call('HGET', boxes, mail_field(life, mark)) or ''
    local line, value = kept:match('^([^\n]*)\n(.*)$')
    line, value = line or kept, value or 'null'
    local digest = field_in(line .. ' ', ' digest=') or ''
    take_signal(box, life, signal, mark)
    written[#written + 1], written[#written + 2] = mail_field(life, mark), line
    local text = head .. digest .. ' from=' .. mark .. '\n' .. value
    write_entry(box, life, entry, field, text)
    say_saved(box, record .. ',' .. digits(#value) .. ',"' .. digest .. '"', nil, mark)
    return 'over', text
  elseif till and till <= now then
    write_entry(box, life, entry, field, head .. 'over')
    say_saved(box, record .. ',null,"over"', nil, nil)
    return 'over', head .. 'over'
  elseif not old then
    local ending = till and ' until=' .. digits(till) or ''
    write_entry(box, life, entry, field, name .. ' ' .. kind .. ' at=' .. now_text .. ' fence=' .. fence .. ending)
    say(false, record .. ',"' .. what .. '",' .. (till and digits(till) or 'null') .. ']')
  end
  return 'waits', till and digits(till) or '-'
end

--- Give the box of a job the name LIFE, if the box has only signals: Redis has lost the box LIFE of the claim in force,
--- and a signal has begun another box since then. The log has the signals again, at this moment and without their
--- values. Returns why the box cannot be moved, else nil.
local function move_box(i, id, fence, life)
  local line, header_now = found_for(i)
  local refused = refusal_of(id, line, fence)
  if refused then
    return refused
  end
  local job = read_line(line)
  local old = job.life
  if not old or old == life then
    return nil
  end
  local header = redis.call('HGET', boxes, old)
  local entries, bytes, mail = read_header(header)
  if not header or entries > 0 or header_now or mail > MOVED_MAX then
    return 'other'
  end
  local seen = {}
  local function move(rest)
    local text = not seen[rest] and redis.call('HGET', boxes, old .. rest)
    seen[rest] = true
    if text then
      text = text:gsub('^(%S+ at=)%d+', '%1' .. now_text, 1)
      taken[#taken + 1], written[#written + 1], written[#written + 2] = old .. rest, life .. rest, text
    end
    return text
  end
  for n = 1, mail do
    local mark = digits(n)
    local text = move('>' .. mark) or ''
    local name, key = read_signal(text)
    local value, digest = text:match('\n(.*)$'), field_in(text, ' digest=')
    move('>' .. name)
    if key then
      move('=' .. key)
    end
    moved[#moved + 1] = '["' .. id .. '","' .. life .. '",' .. mark .. ',"' .. name .. '",' ..
      (key and '"' .. key .. '"' or 'null') .. ',' .. digits(#(value or '')) .. ',"' .. (digest or '') .. '"]'
  end
  taken[#taken + 1] = old
  job.life = life
  changed[#changed + 1] = life
  changed[#changed + 1] = {id = id, entries = 0, bytes = bytes, mail = mail, job = job, is_new = true}
  return nil
end

--- Carry a record out. Returns why it was not carried out, if so, and the number of entries in the box. For a wait or a
--- sleep that is over, returns `over` and the text of its entry.
local function carry_out(i)
  local id, fence, life, what, place, name, about = each(i)
  if what == 'move' then
    return move_box(i, id, fence, life), '-'
  end
  local box, why = box_of(i, id, fence, life)
  if why then
    return why, '-'
  end
  local entry, has = whole_number(place), box.entries
  local field = entry and entry_field(life, entry)
  if not entry or entry < 1 then
    return 'conflict', digits(has)
  elseif entry > has + 1 then
    return 'behind', digits(has)
  end
  local record = '["' .. id .. '","' .. fence .. '","' .. life .. '",' .. digits(entry) .. ',"' .. name .. '"'
  local old = entry <= has and (box.written[field] or redis.call('HGET', boxes, field))
  if (what == 'wait' or what == 'sleep') and entry <= ENTRIES_MAX then
    return await(box, old, record, i, entry)
  elseif entry <= has then
    why = compare(old or name .. ' begun', what, name)
    if why == 'known' then
      return nil
    end
  end
  local value = values[i] or '!not_json'
  local size = what ~= 'begin' and value:byte() ~= NO_VALUE and #value or 0
  local signal
  if what == 'take' then
    signal = signal_again(life, name, about, notes[i])
    size = signal and 0 or size   -- the signal's value counts already
  end
  if why == 'conflict' or entry > ENTRIES_MAX or box.bytes + size > BYTES_MAX then
    return why or 'full', digits(has)
  end
  local text = name .. (what == 'begin' and ' begun at=' or ' saved at=') .. now_text .. ' fence=' .. fence
  if what == 'begin' then
    say(false, record .. ']')
  else
    local is_kept = value:byte() ~= NO_VALUE
    local note, logged = is_kept and notes[i] or value:sub(2), nil
    if is_kept and note:byte() == FULL then
      note = note:sub(2)
      logged = facts.audit == 'on' and fact('backlog_bytes') < fact('backlog_max_bytes') and cjson.encode(value) or nil
    end
    text = text .. ' digest=' .. note
    local taken_from
    if what == 'take' then
      if signal ~= false then
        take_again(box, life, name, about, signal)
      end
      text, taken_from = text .. ' from=' .. about, about
    end
    text = text .. (is_kept and '\n' .. value or '')
    say_saved(box, record .. ',' .. (is_kept and digits(#value) or 'null') .. ',"' .. note .. '"', logged, taken_from)
  end
  box.bytes = box.bytes + size
  write_entry(box, life, entry, field, text)
  return nil
end

--- Return what the next record needs to be saved like record i, which this call has saved: as a new entry of the same
--- box, with a value. The log gets only the digest of the value. Return nil if the next record may not be saved like that.
local function alike_from(i)
  local id, fence, life, what = each(i)
  local box, last = met[life], said[#said]
  if what ~= 'save' or i == each_count or not box or not box.is_changed or box.base or not last or not last.is_saved then
    return nil
  end
  return {
    id = id, fence = fence, life = life, box = box, records = last.records,
    record = '["' .. id .. '","' .. fence .. '","' .. life .. '",', saved = ' saved at=' .. now_text .. ' fence=' .. fence .. ' digest=',
  }
end

--- Save record i and those behind it as carry_out would, as long as each is like the record before it. Returns the first
--- record that is not. A worker saves the results of children like that, so nothing is read twice here: each instruction
--- of Lua costs Redis some 40.
local function save_alike(i, alike)
  local box, records = alike.box, alike.records
  local before, between, behind = alike.record, alike.life .. '|', alike.saved
  local entry, bytes, at, said_at = box.entries, box.bytes, #written, #records
  local first = at
  while i <= each_count do
    local id, fence, life, what, place, name = each(i)
    local value, note = values[i], notes[i]
    local text = digits(entry + 1)
    local size = value and #value
    if place ~= text or lines and id ~= alike.id or fence ~= alike.fence or headers and life ~= alike.life or what ~= 'save'
      or not size or #note ~= DIGEST_LENGTH or value:byte() == NO_VALUE or entry >= ENTRIES_MAX or bytes + size > BYTES_MAX then
      break
    end
    i, entry, bytes, at, said_at = i + 1, entry + 1, bytes + size, at + 2, said_at + 1
    records[said_at] = before .. text .. ',"' .. name .. '",' .. digits(size) .. ',"' .. note .. '"]'
    written[at - 1], written[at] = between .. text, name .. behind .. note .. '\n' .. value
  end
  box.entries, box.bytes = entry, bytes
  if i <= each_count then
    for k = first + 1, at, 2 do
      box.written[written[k]] = written[k + 1]   -- a later record may name the entry again
    end
  end
  return i
end

--- Return the hash fields that field n of the records names, in order. Most calls save entries of one job: if all records
--- name one field, return nil and the value of this field. A call about several jobs has several entries of each, one
--- behind the other: their field is read once.
local function read_alike(key, n)
  local name = same(n)
  if name then
    return nil, redis.call('HGET', key, name)
  end
  local names, distinct, size = column(n), {}, 0
  for i = 1, each_count do
    if names[i] ~= distinct[size] then
      size = size + 1
      distinct[size] = names[i]
    end
  end
  local read = read_many(key, distinct)
  local found, at = {}, 0
  for i = 1, each_count do
    if names[i] ~= distinct[at] then
      at = at + 1
    end
    found[i] = read[at]
  end
  return found, nil
end

--- Decide about all records. Returns the answer, and by place in it the text of entries that the worker lacks.
local function decide_saves()
  lines, line_of_all = read_alike(state, 1)
  headers, header_of_all = read_alike(boxes, 3)
  values, notes = tails()
  said, written, met, changed, taken, moved = {}, {}, {}, {}, {}, {}
  local answer, shown = {}, {}
  local i = 1
  while i <= each_count do
    local why, has = carry_out(i)
    if why == 'over' then
      shown[#answer + 3], has = #has <= SHOWN_MAX and has or nil, '-'
    end
    if why then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = digits(i), why, has
    end
    local alike = not why and alike_from(i)
    i = alike and save_alike(i + 1, alike) or i + 1
  end
  if #changed > 0 and not facts.durable then
    set_fact('durable', '1')
  end
  return answer, shown
end

--- Append the events, and write the boxes, and the lines of the jobs whose boxes begin or whose `base` changes.
local function write_saves()
  emit('signalled', now, worker, moved, 'the box of the claim was lost')
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
    written[#written + 1], written[#written + 2] = life, write_header(box.id, box.entries, box.bytes, box.mail)
    if box.is_new or box.is_moved then
      box.job.base = box.is_moved and box.base or box.job.base
      rewritten[#rewritten + 1], rewritten[#rewritten + 2] = box.id, write_line(box.job)
    end
  end
  call_many('HSET', boxes, written)
  call_many('HSET', state, rewritten)
  call_many('HDEL', boxes, taken)   -- last: `written` may also have a list whose last signal this call took
end
